; model: zoo:mini_googlenet
; emit: program
