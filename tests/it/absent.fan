fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
graph @net(%x: f32[N,8], %w: f32[8]) -> (y: f32[16], x: f32[N,8]) {
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %w.r0.d : f32[8] = copy(%w)
    %y.r0 : f32[8] = exp(%w.r0.d)
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %y.r0.h : f32[8] = copy(%y.r0)
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %w.r1.d : f32[8] = copy(%w)
    %y.r1 : f32[8] = exp(%w.r1.d)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %y.r1.h : f32[8] = copy(%y.r1)
  }
  on cpu:0 {
    %y : f32[16] = concat(%y.r0.h, %y.r1.h) {axis=0}
  }
  return %y, %x
}
