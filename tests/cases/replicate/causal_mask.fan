; gpus: 2
fanwise 1
symbol N >= 0
graph @causal(%q: f32[N,2,4,8], %k: f32[N,2,4,8], %v: f32[N,2,4,8]) -> (y: f32[N,2,4,8]) {
  %scores : f32[N,2,4,4] = einsum(%q, %k) {equation="bhqd,bhkd->bhqk"}
  %hidden : f32[4,4] = constant_of_shape() {shape=[4, 4], value=f32[1] [-inf]}
  %mask : f32[4,4] = trilu(%hidden) {k=1}
  %masked : f32[N,2,4,4] = add(%scores, %mask)
  %weights : f32[N,2,4,4] = softmax(%masked) {axis=-1}
  %y : f32[N,2,4,8] = einsum(%weights, %v) {equation="...qk,...kd->...qd"}
  return %y
}
