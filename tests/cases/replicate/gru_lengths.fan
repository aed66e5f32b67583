; gpus: 2
; shards: balanced
fanwise 1
symbol N >= 0
param @w : f32[2,12,3] = "m#w" blake3:0123456789abcdef
param @r : f32[2,12,4] = "m#r" blake3:0123456789abcdef
graph @gru_lengths(%x: f32[N,5,3], %lengths: i64[N]) -> (y: f32[N,5,2,4], h: f32[N,2,4]) {
  %y : f32[N,5,2,4], %h : f32[N,2,4] = gru(%x, @w, @r, %lengths) {batch_first=true, direction=bidirectional, lengths=true, reset_after=true, candidate="leaky_relu(0.1)"}
  return %y, %h
}
