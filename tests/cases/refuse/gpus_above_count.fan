; model: zoo:mlp
; gpus: 8
; found: 2
