; model: zoo:two_head
; gpus: 3
; shards: weighted:3,1,2
