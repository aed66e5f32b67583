; gpus: 2
; repair: comm
fanwise 1
symbol N >= 0
graph @g(%x: f32[N], %m: f32[N]) -> (y: f32[]) {
  %xm : f32[N] = mul(%x, %m)
  %num : f32[] = reduce_sum(%xm) {axes=[0], keepdims=false}
  %den : f32[] = reduce_sum(%m) {axes=[0], keepdims=false}
  %y : f32[] = div(%num, %den)
  return %y
}
