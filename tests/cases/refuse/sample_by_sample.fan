; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4]) -> (y: f32[N,N]) {
  %t : f32[4,N] = transpose(%x) {perm=[1,0]}
  %y : f32[N,N] = matmul(%x, %t)
  return %y
}
