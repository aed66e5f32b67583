; gpus: 2
fanwise 1
symbol N >= 0
graph @groups(%x: f32[N,6,5,5], %scale: f32[6], %bias: f32[6]) -> (y: f32[N,6,5,5]) {
  %groups : f32[N,6,5,5] = group_norm(%x, %scale, %bias) {groups=3}
  %y : f32[N,6,5,5] = instance_norm(%groups, %scale, %bias)
  return %y
}
