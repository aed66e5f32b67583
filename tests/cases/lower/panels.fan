; target: cpu
; gpus: 2
; emit: program
fanwise 1
symbol N >= 0
param @columns : f32[100,130] = "m.onnx#columns" blake3:0000000000000000
param @rows : f32[70,130] = "m.onnx#rows" blake3:0000000000000000
param @both : f32[70,70] = "m.onnx#both" blake3:0000000000000000
param @summed : f32[70,70] = "m.onnx#summed" blake3:0000000000000000
param @narrow : f32[20,70] = "m.onnx#narrow" blake3:0000000000000000
graph @panels(%x: f32[N,100]) -> (y: f32[N,20], s: f32[70]) {
  %a : f32[N,130] = matmul(%x, @columns)
  %b : f32[N,70] = gemm(%a, @rows) {trans_b=true}
  %c : f32[N,70] = matmul(%b, @both)
  %d : f32[N,70] = gemm(%c, @both) {trans_b=true}
  %e : f32[N,70] = matmul(%d, @summed)
  %s : f32[70] = reduce_sum(@summed) {axes=[0], keepdims=false}
  %y : f32[N,20] = gemm(%e, @narrow) {trans_b=true}
  return %y, %s
}
