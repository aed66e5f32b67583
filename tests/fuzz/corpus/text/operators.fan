fanwise 1
symbol N >= 0
param @w : f32[6,3,2,2] = "m.onnx#w" blake3:0123456789abcdef
param @k : f32[6] = "m.onnx#k" blake3:0123456789abcdef
graph @net(%x: f32[N,3,8,8], %i: i64[N,2]) -> (y: f32[N,6], z: i64[N]) {
  %c : f32[N,6,4,4] = conv(%x, @w, @k) {strides=[2, 2]} ; a comment
  %p : f32[N,6,2,2] = max_pool(%c) {kernel=[2, 2], strides=[2, 2]}
  %b : f32[N,6,2,2] = batch_norm(%p, @k, @k, @k, @k) {epsilon=1e-5}
  %s : i64[4] = shape(%b)
  %"odd \u{7} name" : f32[N,6,2,2] = clip(%b) {max=inf, min=-0.5}
  %f : f32[N,24] = reshape(%"odd \u{7} name") {shape=[N, 24]}
  %g : f32[N,24] = pad(%f) {pads=[0, 1, 0, -1]}
  %h : f32[N,6], %j : f32[N,18] = split(%g) {axis=1, sizes=[6, 18]}
  %k : f32[2] = constant() {value=f32[2] [0.5, nan(7fc00001)]}
  %m : bool[N,6] = less(%h, %h)
  %n : f32[N,6] = where(%m, %h, %h)
  %r : i64[N] = arg_max(%n) {axis=1, keepdims=false}
  %t : i64[N] = slice(%r) {axes=[0], ends=[N], starts=[0], steps=[1]}
  return %n, %t
}
loc {
  %c, %p = "layer/1"
  %h = "split"
}
