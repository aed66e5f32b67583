; gpus: 2
; shards: balanced
fanwise 1
symbol N >= 0
graph @scatter_rows(%x: f32[N,8], %i: i64[N,3], %u: f32[N,3]) -> (y: f32[N,8]) {
  %y : f32[N,8] = scatter_elements(%x, %i, %u) {axis=1, reduction=add}
  return %y
}
