; model: zoo:two_head
; gpus: 2,0,5
; merge: gpu
