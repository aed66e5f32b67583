; gpus: 2
fanwise 1
symbol N >= 0
param @w : f32[4] = "t#w" blake3:0000000000000001
graph @fit(%x: f32[N,4]) -> (y: f32[N,4]) {
  %y : f32[N,4] = relu(%x)
  %g : f32[4] = reduce_max(%y) {axes=[0], keepdims=false}
  update @w = %g
  return %y
}
