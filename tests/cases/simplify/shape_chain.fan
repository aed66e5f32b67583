; simplify: yes
; emit: input
fanwise 1
symbol N >= 0
graph @chain(%x: f32[N,4,8]) -> (y: f32[N,4,8], rows: i64[1]) {
  %s : i64[3] = shape(%x)
  %i : i64[1] = constant() {value=i64[1] [0]}
  %rows : i64[1] = gather(%s, %i) {axis=0}
  %d : f32[N,4,8] = dropout(%x)
  %e : f32[N,4,8] = identity(%d)
  return %e, %rows
}
