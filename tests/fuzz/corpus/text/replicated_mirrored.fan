fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
param @w : f32[4] = "m.onnx#w" blake3:5cb9a272a8d608a1 mirror @dp
graph @net(%x: f32[N,8]) -> (y: f32[N,8]) {
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %x.r0 : f32[n0@dp,8] = slice(%x) {axes=[0], ends=[N/2], starts=[0], steps=[1]}
  }
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %x.r0.d : f32[n0@dp,8] = copy(%x.r0)
    %v.r0 : f32[4] = neg(@w)
    %y.r0 : f32[n0@dp,8] = relu(%x.r0.d)
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %y.r0.h : f32[n0@dp,8] = copy(%y.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %x.r1 : f32[n1@dp,8] = slice(%x) {axes=[0], ends=[N], starts=[N/2], steps=[1]}
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %x.r1.d : f32[n1@dp,8] = copy(%x.r1)
    %v.r1 : f32[4] = neg(@w)
    %y.r1 : f32[n1@dp,8] = relu(%x.r1.d)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %y.r1.h : f32[n1@dp,8] = copy(%y.r1)
  }
  on cpu:0 {
    %y : f32[N,8] = concat(%y.r0.h, %y.r1.h) {axis=0}
  }
  return %y
}
