; model: zoo:mlp
; gpus: 2
; shards: weighted:1,2,3
