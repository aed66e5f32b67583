; model: zoo:xception
; gpus: 2
; weights: mirrored
