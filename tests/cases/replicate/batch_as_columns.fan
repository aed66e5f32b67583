; gpus: 2
fanwise 1
symbol N >= 0
graph @columns(%w: f32[4,3], %v: f32[2,4], %x: f32[3,N], %c: f32[2,1]) -> (y: f32[2,N]) {
  %h : f32[4,N] = matmul(%w, %x)
  %r : f32[4,N] = relu(%h)
  %y : f32[2,N] = gemm(%v, %r, %c)
  return %y
}
