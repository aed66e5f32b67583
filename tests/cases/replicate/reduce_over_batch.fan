; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4]) -> (y: f32[4]) {
  %a : f32[N,4] = relu(%x)
  %b : f32[N,4] = tanh(%a)
  %y : f32[4] = reduce_mean(%b) {axes=[0], keepdims=false}
  return %y
}
