; gpus: 2
; repair: comm
; weights: mirrored
; emit: program
fanwise 1
symbol N >= 0
param @w : f32[4] = "t#w" blake3:0000000000000001
param @rate : f32[] = "t#rate" blake3:0000000000000002
param @decay : f32[] = "t#decay" blake3:0000000000000003
graph @fit(%x: f32[N,4]) -> (y: f32[N]) {
  %wx : f32[N,4] = mul(%x, @w)
  %y : f32[N] = reduce_sum(%wx) {axes=[1], keepdims=false}
  %g : f32[4] = reduce_sum(%x) {axes=[0], keepdims=false}
  %step : f32[4] = mul(%g, @rate)
  %w.new : f32[4] = sub(@w, %step)
  %rate.new : f32[] = mul(@rate, @decay)
  update @w = %w.new
  update @rate = %rate.new
  return %y
}
