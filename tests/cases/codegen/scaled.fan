; A squeeze-and-excite block between convolutions: images stay in their order, and are reordered
; where they come and go.
; gpus: 1
; target: cuda
; emit: calls
fanwise 1
symbol N >= 0
graph @scaled(%x: f32[N,4,6,6], %w: f32[8,4,3,3], %v: f32[2,8,3,3]) -> (y: f32[N,2,2,2]) {
  %h : f32[N,8,4,4] = conv(%x, %w)
  %m : f32[N,8,1,1] = reduce_mean(%h) {axes=[2, 3], keepdims=true}
  %s : f32[N,8,1,1] = sigmoid(%m)
  %e : f32[N,8,4,4] = mul(%h, %s)
  %y : f32[N,2,2,2] = conv(%e, %v)
  return %y
}
