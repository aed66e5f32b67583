; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,1], %z: f32[1,N]) -> (y: f32[N,N]) {
  %y : f32[N,N] = add(%x, %z)
  return %y
}
