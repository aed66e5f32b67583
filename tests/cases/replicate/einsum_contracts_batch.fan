; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4], %z: f32[N,3]) -> (y: f32[4,3]) {
  %y : f32[4,3] = einsum(%x, %z) {equation="ni,nj->ij"}
  return %y
}
