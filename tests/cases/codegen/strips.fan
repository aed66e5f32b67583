; Concatenations of channels. Of the first, convolutions and a pool write their channels in place, behind a function at that;
; the others have a value that something else reads, one that no kernel writes so, and a chain with another image: they are copied.
; gpus: 1
; target: cuda
; emit: program
fanwise 1
symbol N >= 0
param @w1 : f32[5,6,1,1] = "t#w1" blake3:0000000000000001
param @w3 : f32[8,6,3,3] = "t#w3" blake3:0000000000000002
param @wt : f32[6,3,1,1] = "t#wt" blake3:0000000000000004
param @wd : f32[6,1,3,3] = "t#wd" blake3:0000000000000005
param @all : f32[7,22,1,1] = "t#all" blake3:0000000000000006
param @some : f32[7,11,1,1] = "t#some" blake3:0000000000000007
param @s : f32[5] = "t#s" blake3:0000000000000008
param @b : f32[5] = "t#b" blake3:0000000000000009
param @m : f32[5] = "t#m" blake3:000000000000000a
param @v : f32[5] = "t#v" blake3:000000000000000b
graph @strips(%x: f32[N,6,8,8], %side: f32[N,5,8,8]) -> (y: f32[N,7,8,8], z: f32[N,7,8,8], u: f32[N,7,8,8], s: f32[N,7,8,8]) {
  %one : f32[N,5,8,8] = conv(%x, @w1)
  %norm : f32[N,5,8,8] = batch_norm(%one, @s, @b, @m, @v)
  %bent : f32[N,5,8,8] = relu(%norm)
  %three : f32[N,8,8,8] = conv(%x, @w3) {pads=[1, 1, 1, 1]}
  %turned : f32[N,3,8,8] = conv_transpose(%x, @wt)
  %pool : f32[N,6,8,8] = max_pool(%x) {kernel=[3, 3], pads=[1, 1, 1, 1]}
  %whole : f32[N,22,8,8] = concat(%bent, %three, %turned, %pool) {axis=-3}
  %y : f32[N,7,8,8] = conv(%whole, @all)
  %read : f32[N,5,8,8] = conv(%x, @w1)
  %beside : f32[N,6,8,8] = average_pool(%x) {kernel=[3, 3], pads=[1, 1, 1, 1]}
  %first : f32[N,11,8,8] = concat(%read, %beside) {axis=1}
  %a : f32[N,7,8,8] = conv(%first, @some)
  %second : f32[N,11,8,8] = concat(%beside, %read) {axis=1}
  %z : f32[N,7,8,8] = conv(%second, @some)
  %deep : f32[N,6,8,8] = conv(%x, @wd) {groups=6, pads=[1, 1, 1, 1]}
  %flat : f32[N,5,8,8] = conv(%x, @w1)
  %third : f32[N,11,8,8] = concat(%deep, %flat) {axis=1}
  %u : f32[N,7,8,8] = conv(%third, @some)
  %plain : f32[N,5,8,8] = conv(%x, @w1)
  %added : f32[N,5,8,8] = add(%plain, %side)
  %half : f32[N,6,8,8] = max_pool(%x) {kernel=[1, 1]}
  %fourth : f32[N,11,8,8] = concat(%added, %half) {axis=1}
  %t : f32[N,7,8,8] = conv(%fourth, @some)
  %sum : f32[N,7,8,8] = add(%a, %t)
  return %y, %z, %u, %sum
}
