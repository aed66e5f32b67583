fanwise 1
symbol N >= 0
param @w : f32[8] = "m.onnx#w" blake3:304341875050bafc
graph @two_head(%x: f32[N,8], %aux: f32[N,2]) -> (logits: f32[N,10], "score 2": f32[N,8], scale: f32[8], aux: f32[N,2]) {
  %h : f32[N,8] = relu(%x)
  %scale : f32[8] = exp(@w)
  %joined : f32[N,10] = concat(%h, %aux) {axis=1}
  %"a/score:0" : f32[N,8] = slice(%joined) {axes=[1], ends=[10], starts=[2], steps=[1]}
  return %joined, %"a/score:0", %scale, %aux
}
loc {
  %h, %scale = "block/relu 1"
}
