; gpus: 2
fanwise 1
symbol N >= 0
graph @two_views(%a: f32[N,4], %b: f32[N,4], %w: f32[4,3]) -> (z: f32[2*N,3], same: f32[N]) {
  %v : f32[2*N,4] = concat(%a, %b) {axis=0}
  %h : f32[2*N,3] = matmul(%v, %w)
  %z : f32[2*N,3] = lp_norm(%h) {axis=1}
  %l : f32[N,3], %r : f32[N,3] = split(%z) {sizes=[N, N]}
  %p : f32[N,3] = mul(%l, %r)
  %same : f32[N] = reduce_sum(%p) {axes=[1], keepdims=false}
  return %z, %same
}
