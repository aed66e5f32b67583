; gpus: 2
; shards: balanced
fanwise 1
symbol N >= 0
graph @gather_rows(%x: f32[N,8,4], %i: i64[N,3,1]) -> (y: f32[N,3,4], z: f32[N,2,4], o: f32[N,3,1,9]) {
  %y : f32[N,3,4] = gather_nd(%x, %i) {batch_dims=1}
  %v : f32[N,2,4], %p : i64[N,2,4] = top_k(%x) {axis=1, k=2}
  %z : f32[N,2,4] = gather_elements(%x, %p) {axis=1}
  %b : f32[2] = constant() {value=f32[2] [0.0, 1.0]}
  %o : f32[N,3,1,9] = one_hot(%i, %b) {depth=9}
  return %y, %z, %o
}
