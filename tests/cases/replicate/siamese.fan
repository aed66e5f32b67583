; model: zoo:siamese
; gpus: 3
