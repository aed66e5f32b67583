; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,2,3], %c: f32[2]) -> (y: f32[N,2,3]) {
  %y : f32[N,2,3], %mean : f32[2], %var : f32[2] = batch_norm_train(%x, %c, %c, %c, %c)
  return %y
}
