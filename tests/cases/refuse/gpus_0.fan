; model: zoo:mlp
; gpus: 0
