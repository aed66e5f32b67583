; gpus: 2
; repair: comm
; merge: gpu
fanwise 1
symbol N >= 0
graph @contrastive(%a: f32[N,4], %b: f32[N,4], %w: f32[4,3]) -> (s: f32[2*N,2*N], z: f32[2*N,3]) {
  %v : f32[2*N,4] = concat(%a, %b) {axis=0}
  %h : f32[2*N,3] = matmul(%v, %w)
  %z : f32[2*N,3] = lp_norm(%h) {axis=1}
  %t : f32[3,2*N] = transpose(%z) {perm=[1, 0]}
  %s : f32[2*N,2*N] = matmul(%z, %t)
  return %s, %z
}
