; model: zoo:transformer
; gpus: 3
