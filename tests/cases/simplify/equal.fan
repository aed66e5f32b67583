; simplify: yes
; emit: input
fanwise 1
symbol N >= 0
graph @equal(%x: f32[N,4], %y: f32[N,4]) -> (a: f32[N,4], b: f32[N,4], c: f32[N,4], d: f32[N,4], e: f32[N,4], f: f32[N,4], g: f32[N,4]) {
  %one : f32[N,4] = sub(%x, %y)
  %two : f32[N,4] = sub(%x, %y)
  %other : f32[N,4] = sub(%y, %x)
  %a : f32[N,4] = tanh(%one)
  %b : f32[N,4] = tanh(%two)
  %c : f32[N,4] = tanh(%other)
  %plus : f32[] = constant() {value=f32[] [0.0]}
  %again : f32[] = constant() {value=f32[] [0.0]}
  %minus : f32[] = constant() {value=f32[] [-0.0]}
  %d : f32[N,4] = mul(%a, %plus)
  %e : f32[N,4] = mul(%b, %again)
  %f : f32[N,4] = mul(%a, %minus)
  %g : f32[N,4] = leaky_relu(%one) {alpha=0.5}
  return %a, %b, %c, %d, %e, %f, %g
}
