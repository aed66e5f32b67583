; Replicas of different columns share kernels.
; gpus: 3
; target: cuda
; emit: calls
fanwise 1
symbol N >= 0
graph @columns(%x: f32[24,N], %w: f32[70,24], %bias: f32[70,1]) -> (y: f32[24,N]) {
  %product : f32[70,N] = matmul(%w, %x)
  %sum : f32[70,N] = add(%product, %bias)
  %y : f32[24,N] = gemm(%w, %sum, %x) {trans_a=true}
  return %y
}
