; gpus: 2
fanwise 1
symbol N >= 0
graph @embedded(%tokens: i64[N,6], %words: f32[50,4], %positions: f32[6,4]) -> (y: f32[N,6,4], numbers: i64[N,6]) {
  %word : f32[N,6,4] = gather(%words, %tokens)
  %y : f32[N,6,4] = add(%word, %positions)
  %numbers : i64[N,6] = add(%tokens, %tokens)
  return %y, %numbers
}
