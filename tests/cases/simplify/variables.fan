; simplify: yes
; emit: verify
fanwise 1
symbol N >= 0
param @w : f32[4] = "t#w" blake3:0000000000000001
param @unread : f32[4] = "t#unread" blake3:0000000000000002
param @unused : f32[4] = "t#unused" blake3:0000000000000003
graph @fit(%x: f32[N,4]) -> (y: f32[N,4]) {
  %twice : f32[4] = add(@w, @w)
  %same : f32[4] = identity(%twice)
  %y : f32[N,4] = mul(%x, %same)
  %other : f32[4] = neg(@unused)
  update @w = %same
  update @unread = @w
  return %y
}
