; model: zoo:two_head
; gpus: 3
; shards: ceil
