; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4]) -> (a: f32[4], b: f32[N,4]) {
  %a : f32[4] = reduce_log_sum(%x) {axes=[0], keepdims=false}
  %b : f32[N,4] = log_softmax(%x) {axis=0}
  return %a, %b
}
