; gpus: 2
fanwise 1
symbol N >= 0
param @w : f32[1,4,3] = "m#w" blake3:0123456789abcdef
param @r : f32[1,4,4] = "m#r" blake3:0123456789abcdef
graph @g(%x: f32[N,2,3]) -> (y: f32[N,1,2,4]) {
  %y : f32[N,1,2,4], %h : f32[1,2,4] = rnn(%x, @w, @r)
  return %y
}
