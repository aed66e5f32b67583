; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4]) -> (y: f32[N,4]) {
  %y : f32[N,4] = reverse(%x) {axes=[0]}
  return %y
}
