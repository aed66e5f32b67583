; gpus: 2
fanwise 1
symbol N >= 0
graph @time_major(%x: f32[5,N,8], %scale: f32[8]) -> (normal: f32[5,N,8], mean: f32[5,N,1], inverse: f32[5,N,1], sums: f32[5,N,8], unit: f32[5,N,8]) {
  %normal : f32[5,N,8], %mean : f32[5,N,1], %inverse : f32[5,N,1] = layer_norm(%x, %scale) {statistics=true}
  %sums : f32[5,N,8] = cumsum(%x) {axis=0, exclusive=true, reverse=true}
  %unit : f32[5,N,8] = lp_norm(%x) {axis=0, p=1}
  return %normal, %mean, %inverse, %sums, %unit
}
