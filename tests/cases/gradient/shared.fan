; A value that is used twice gets the sum of two gradients; integers and what is behind them get
; none.
; emit: gradient
fanwise 1
symbol N >= 0
graph @shared(%x: f32[N,3], %i: i64[N], %z: f32[N]) -> (loss: f32[]) {
  %e : f32[N,3] = exp(%x)
  %p : f32[N,3] = mul(%e, %x)
  %f : i64[N] = cast(%z) {to=i64}
  %s : i64[N] = add(%f, %i)
  %g : f32[N] = cast(%s) {to=f32}
  %r : f32[N] = reduce_sum(%p) {axes=[1], keepdims=false}
  %q : f32[N] = mul(%r, %g)
  %loss : f32[] = reduce_mean(%q) {axes=[0], keepdims=false}
  return %loss
}
