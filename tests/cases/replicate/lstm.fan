; model: zoo:lstm
; gpus: 3
