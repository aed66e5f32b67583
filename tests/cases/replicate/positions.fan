; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: i64[N,4]) -> (y: i64[N,4]) {
  %p : i64[N] = range() {limit=N}
  %c : i64[N,1] = reshape(%p) {shape=[N, 1]}
  %y : i64[N,4] = add(%x, %c)
  return %y
}
