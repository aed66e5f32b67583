; model: zoo:mlp
; gpus: 0,9
; found: 4
