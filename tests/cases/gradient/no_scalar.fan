; Only one number is differentiated.
; emit: gradient
fanwise 1
symbol N >= 0
graph @rows(%x: f32[N,3]) -> (y: f32[N,3]) {
  %y : f32[N,3] = exp(%x)
  return %y
}
