; model: zoo:mlp
; gpus: 3
