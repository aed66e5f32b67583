; target: cuda
; gpus: 3
; repair: comm
; emit: program
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4], %z: f32[N,4,40000]) -> (y: f32[N,4], m: f32[4], s: f32[N,N], l: f32[N,4,40000]) {
  %a : f32[N,4] = relu(%x)
  %m : f32[4] = reduce_max(%a) {axes=[0], keepdims=false}
  %y : f32[N,4] = sub(%a, %m)
  %t : f32[4,N] = transpose(%a) {perm=[1, 0]}
  %s : f32[N,N] = matmul(%a, %t)
  %w : f32[4,40000] = reduce_max(%z) {axes=[0], keepdims=false}
  %l : f32[N,4,40000] = sub(%z, %w)
  return %y, %m, %s, %l
}
