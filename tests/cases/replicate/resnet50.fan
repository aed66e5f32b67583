; model: zoo:resnet50
; gpus: 2
; weights: mirrored
