; target: cuda
; gpus: 2
; emit: program
fanwise 1
symbol N >= 0
param @w : f32[8,3,3,3] = "m.onnx#w" blake3:0000000000000000
param @v : f32[8,8,1,1] = "m.onnx#v" blake3:0000000000000000
param @b : f32[8,1,1] = "m.onnx#b" blake3:0000000000000000
param @s : f32[4,4] = "m.onnx#s" blake3:0000000000000000
param @o : f32[8,16,1,1] = "m.onnx#o" blake3:0000000000000000
graph @images(%x: f32[N,3,4,4]) -> (y: f32[N,8], k: i64[N,8,2], z: f32[N,8,4,4]) {
  %c : f32[N,8,4,4] = conv(%x, @w) {pads=[1, 1, 1, 1]}
  %r : f32[N,8,4,4] = relu(%c)
  %d : f32[N,8,4,4] = conv(%r, @v)
  %e : f32[N,8,4,4] = add(%d, @b)
  %f : f32[N,8,4,4] = add(%e, %r)
  %g : f32[N,8,4,4] = tanh(%f)
  %h : f32[N,8,4,4] = sub(%g, @s)
  %p : f32[N,8,1,1] = reduce_mean(%h) {axes=[2, 3], keepdims=true}
  %y : f32[N,8] = reshape(%p) {shape=[N, 8]}
  %u : f32[N,8,16] = reshape(%h) {shape=[N, 8, 16]}
  %t : f32[N,8,2], %k : i64[N,8,2] = top_k(%u) {axis=2, k=2}
  %q : f32[N,16,4,4] = concat(%g, %h) {axis=1}
  %z : f32[N,8,4,4] = conv(%q, @o)
  return %y, %k, %z
}
