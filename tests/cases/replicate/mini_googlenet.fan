; model: zoo:mini_googlenet
; gpus: 2
; weights: mirrored
