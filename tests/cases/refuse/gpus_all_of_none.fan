; model: zoo:mlp
; gpus: all
