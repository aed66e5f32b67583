; gpus: 2
; shards: balanced
fanwise 1
symbol N >= 0
param @w : f32[1,16,3] = "m#w" blake3:0123456789abcdef
param @r : f32[1,16,4] = "m#r" blake3:0123456789abcdef
param @b : f32[1,32] = "m#b" blake3:0123456789abcdef
graph @time_major_lstm(%x: f32[5,N,3]) -> (y: f32[5,1,N,4], h: f32[1,N,4], c: f32[1,N,4]) {
  %h0 : f32[1,N,4] = constant_of_shape() {shape=[1, N, 4], value=f32[] [0.5]}
  %y : f32[5,1,N,4], %h : f32[1,N,4], %c : f32[1,N,4] = lstm(%x, @w, @r, @b, %h0, %h0) {bias=true, initial=true}
  return %y, %h, %c
}
