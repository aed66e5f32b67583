; model: zoo:nested
; gpus: 3
