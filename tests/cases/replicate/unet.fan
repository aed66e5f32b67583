; model: zoo:unet
; gpus: 2
; weights: mirrored
