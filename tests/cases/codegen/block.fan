; A block of a convolutional network: a depthwise convolution, one with batch normalisation, an
; addition and a function in its chain, and what gives classes.
; gpus: 3
; target: cuda
; emit: calls
fanwise 1
symbol N >= 0
graph @block(%x: f32[N,64,14,14], %side: f32[N,128,14,14], %depth: f32[64,1,3,3], %w: f32[128,64,3,3], %scale: f32[128], %bias: f32[128], %mean: f32[128], %var: f32[128], %top: f32[128,10]) -> (y: f32[N,10]) {
  %d : f32[N,64,14,14] = conv(%x, %depth) {groups=64, pads=[1, 1, 1, 1]}
  %h : f32[N,128,14,14] = conv(%d, %w) {pads=[1, 1, 1, 1]}
  %n : f32[N,128,14,14] = batch_norm(%h, %scale, %bias, %mean, %var) {epsilon=0.001}
  %s : f32[N,128,14,14] = add(%n, %side)
  %r : f32[N,128,14,14] = relu(%s)
  %m : f32[N,128] = reduce_mean(%r) {axes=[2, 3], keepdims=false}
  %t : f32[N,10] = matmul(%m, %top)
  %y : f32[N,10] = softmax(%t) {axis=1}
  return %y
}
