; target: cpu
; emit: program
; What has no replica always runs, and must not write where the first replica with rows does.
fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
graph @g(%a: f32[1,2,3,4], %b: f32[1,2,4,5], %x: f32[N]) -> (y: f32[1,3,2,5], x: f32[N]) {
  on gpu:0 {
    %a.0 : f32[1,2,3,4] = copy(%a)
    %b.0 : f32[1,2,4,5] = copy(%b)
    %m.0 : f32[1,2,3,5] = matmul(%a.0, %b.0)
  }
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %t.0 : f32[1,3,2,5] = transpose(%m.0) {perm=[0, 2, 1, 3]}
  }
  on gpu:1 {
    %a.1 : f32[1,2,3,4] = copy(%a)
    %b.1 : f32[1,2,4,5] = copy(%b)
    %m.1 : f32[1,2,3,5] = matmul(%a.1, %b.1)
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %t.1 : f32[1,3,2,5] = transpose(%m.1) {perm=[0, 2, 1, 3]}
  }
  on gpu:0 replica @dp[1] if n1@dp > 0 {
    %u.1 : f32[1,3,2,5] = copy(%t.1)
  }
  on gpu:0 {
    %y.0 : f32[1,3,2,5] = first(%t.0, %u.1)
  }
  on cpu:0 {
    %y : f32[1,3,2,5] = copy(%y.0)
  }
  return %y, %x
}
