; gpus: 2
fanwise 1
symbol N >= 0
graph @foreign(%x: f32[N,4], %t: f32[4,N]) -> (a: f32[N,4], b: f32[N,4], c: f32[N,2,N], d: f32[4,N]) {
  %a : f32[N,4] = external(%x) {op="com.acme.Gate", results="f32[N,4]"}
  %b : f32[N,4] = external(%x, %t) {assume="rowwise(0)", op="com.acme.Join", results="f32[N,4]"}
  %c : f32[N,2,N] = external(%x) {assume="rowwise(0)", op="com.acme.Pairs", results="f32[N,2,N]"}
  %d : f32[4,N] = external(%t) {assume="rowwise(1)", op="com.acme.Other", results="f32[4,N]"}
  return %a, %b, %c, %d
}
