; model: zoo:video
; gpus: 3
