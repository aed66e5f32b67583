fanwise 1
symbol N >= 0
; Own rows are taken for %p; the two behind it are refused, by their places in this file.
graph @g(%x: f32[N,4]) -> (p: f32[N,4], y: f32[N,4], z: f32[N,4]) {
  %at : i64[N] = range() {limit=N}
  %column : i64[N,1] = reshape(%at) {shape=[N, 1]}
  %float : f32[N,1] = cast(%column) {to=f32}
  %p : f32[N,4] = add(%x, %float)

  %soft : f32[N,4] = softmax(%p) {axis=0}
  %y : f32[N,4] = relu(%soft)
  %z : f32[N,4] = cumsum(%p) {axis=0}
  return %p, %y, %z
}
