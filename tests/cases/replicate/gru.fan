; model: zoo:gru
; gpus: 3
