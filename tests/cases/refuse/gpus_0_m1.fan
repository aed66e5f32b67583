; model: zoo:mlp
; gpus: 0,-1
