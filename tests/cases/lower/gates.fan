; target: cpu
; gpus: 2
; emit: program
; Weights of recurrent cells lie in panels of gates where each direction has whole ones, and all who read them are cells;
; what is computed is put into the order of rows before.
fanwise 1
symbol N >= 0
param @w : f32[2,64,3] = "m.onnx#w" blake3:0000000000000000
param @r : f32[2,64,16] = "m.onnx#r" blake3:0000000000000000
param @few : f32[1,12,16] = "m.onnx#few" blake3:0000000000000000
param @between : f32[1,12,4] = "m.onnx#between" blake3:0000000000000000
param @summed : f32[1,64,4] = "m.onnx#summed" blake3:0000000000000000
param @own : f32[1,64,64] = "m.onnx#own" blake3:0000000000000000
param @turned : f32[1,64,256] = "m.onnx#turned" blake3:0000000000000000
graph @gates(%x: f32[N,5,3]) -> (y: f32[N,5,1,64], z: f32[N,5,1,64], s: f32[64,4]) {
  %a : f32[N,5,2,16], %ah : f32[N,2,16], %ac : f32[N,2,16] = lstm(%x, @w, @r) {batch_first=true, direction="bidirectional"}
  %b : f32[N,5,16] = reduce_sum(%a) {axes=[2], keepdims=false}
  %c : f32[N,5,1,4], %ch : f32[N,1,4] = gru(%b, @few, @between) {batch_first=true}
  %d : f32[N,5,4] = squeeze(%c) {axes=[2]}
  %y : f32[N,5,1,64], %yh : f32[N,1,64] = rnn(%d, @summed, @own) {batch_first=true}
  %e : f32[N,5,64] = squeeze(%y) {axes=[2]}
  %t : f32[1,256,64] = transpose(@turned) {perm=[0, 2, 1]}
  %u : f32[1,256,64] = relu(%t)
  %z : f32[N,5,1,64], %zh : f32[N,1,64], %zc : f32[N,1,64] = lstm(%e, %u, %u) {batch_first=true}
  %s : f32[64,4] = reduce_sum(@summed) {axes=[0], keepdims=false}
  return %y, %z, %s
}
