; gpus: 2
fanwise 1
symbol N >= 0
graph @permuted(%x: f32[N,4], %i: i64[N,1]) -> (y: f32[N,4]) {
  %y : f32[N,4] = gather_nd(%x, %i)
  return %y
}
