; gpus: 2
; repair: comm
; weights: mirrored
; target: cuda
; emit: program
fanwise 1
symbol N >= 0
param @w : f32[6,4] = "t#w" blake3:0000000000000001
param @b : f32[3] = "t#b" blake3:0000000000000002
param @v : f32[4,3] = "t#v" blake3:0000000000000003
param @rate : f32[] = "t#rate" blake3:0000000000000004
graph @fit(%x: f32[N,6], %dy: f32[N,3]) -> (y: f32[N,3]) {
  %h : f32[N,4] = matmul(%x, @w)
  %a : f32[N,4] = tanh(%h)
  %y : f32[N,3] = gemm(%a, @v, @b)
  %a.t : f32[4,N] = transpose(%a) {perm=[1, 0]}
  %v.grad : f32[4,3] = matmul(%a.t, %dy)
  %b.grad : f32[3] = reduce_sum(%dy) {axes=[0], keepdims=false}
  %v.t : f32[3,4] = transpose(@v) {perm=[1, 0]}
  %da : f32[N,4] = matmul(%dy, %v.t)
  %square : f32[N,4] = mul(%a, %a)
  %less : f32[N,4] = mul(%da, %square)
  %dh : f32[N,4] = sub(%da, %less)
  %x.t : f32[6,N] = transpose(%x) {perm=[1, 0]}
  %w.grad : f32[6,4] = matmul(%x.t, %dh)
  %v.step : f32[4,3] = mul(%v.grad, @rate)
  %v.new : f32[4,3] = sub(@v, %v.step)
  %b.step : f32[3] = mul(%b.grad, @rate)
  %b.new : f32[3] = sub(@b, %b.step)
  %w.step : f32[6,4] = mul(%w.grad, @rate)
  %w.new : f32[6,4] = sub(@w, %w.step)
  update @v = %v.new
  update @b = %b.new
  update @w = %w.new
  return %y
}
