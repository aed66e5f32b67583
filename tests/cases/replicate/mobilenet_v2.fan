; model: zoo:mobilenet_v2
; gpus: 2
; weights: mirrored
