; model: zoo:two_head
; gpus: 2
; emit: program
