; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[5,3,N], %scale: f32[3], %bias: f32[3]) -> (y: f32[5,3,N]) {
  %y : f32[5,3,N] = instance_norm(%x, %scale, %bias)
  return %y
}
