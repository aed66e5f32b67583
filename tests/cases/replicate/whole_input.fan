; gpus: 2
fanwise 1
symbol N >= 0
graph @scaled(%x: f32[N,4], %table: f32[1,4]) -> (y: f32[N,4], doubled: f32[1,4]) {
  %y : f32[N,4] = add(%x, %table)
  %doubled : f32[1,4] = add(%table, %table)
  return %y, %doubled
}
