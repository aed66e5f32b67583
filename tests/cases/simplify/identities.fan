; simplify: yes
; emit: input
fanwise 1
symbol N >= 0
graph @identities(%x: f32[N,3,4], %i: i32[N,3]) -> (a: f32[N,3,4], b: f32[N,3,4], c: f32[N,3,4], d: i32[N,3], e: f32[N,3,4]) {
  %one : f32[] = constant() {value=f32[] [1.0]}
  %wide : f32[1] = constant() {value=f32[1] [1.0]}
  %whole : i32[] = constant() {value=i32[] [1]}
  %zero : f32[] = constant() {value=f32[] [0.0]}
  %h : f32[N,3,4] = relu(%x)
  %halved : f32[N,3,4] = div(%h, %one)
  %a : f32[N,3,4] = mul(%one, %halved)
  %turned : f32[4,N,3] = transpose(%h) {perm=[2, 0, 1]}
  %b : f32[N,3,4] = transpose(%turned) {perm=[1, 2, 0]}
  %twice : f32[3,4,N] = transpose(%turned) {perm=[2, 0, 1]}
  %thrice : f32[4,N,3] = transpose(%twice) {perm=[1, 2, 0]}
  %c : f32[N,3,4] = transpose(%thrice) {perm=[1, 2, 0]}
  %d : i32[N,3] = mul(%i, %whole)
  %sum : f32[N,3,4] = add(%h, %zero)
  %inverse : f32[N,3,4] = div(%one, %sum)
  %e : f32[N,3,4] = mul(%inverse, %wide)
  return %a, %b, %c, %d, %e
}
