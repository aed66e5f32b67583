; model: zoo:two_head
; gpus: 3
; weights: cpu
; merge: gpu
