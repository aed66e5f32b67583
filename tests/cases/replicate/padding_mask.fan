; gpus: 3
; shards: balanced
fanwise 1
symbol N >= 0
graph @masked(%scores: f32[N,2,4,4], %mask: i64[N,4]) -> (weights: f32[N,2,4,4]) {
  %zero : i64[] = constant() {value=i64[] [0]}
  %low : f32[] = constant() {value=f32[] [-10000.0]}
  %absent : bool[N,4] = equal(%mask, %zero)
  %spread : bool[N,1,1,4] = unsqueeze(%absent) {axes=[1, 2]}
  %masked : f32[N,2,4,4] = where(%spread, %low, %scores)
  %weights : f32[N,2,4,4] = softmax(%masked) {axis=3}
  return %weights
}
