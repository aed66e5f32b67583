; gpus: 2
fanwise 1
symbol N >= 0
graph @counts(%i: i64[N,1], %u: f32[N]) -> (y: f32[10]) {
  %z : f32[10] = constant_of_shape() {shape=[10], value=f32[] [0.0]}
  %y : f32[10] = scatter_nd(%z, %i, %u) {reduction=add}
  return %y
}
