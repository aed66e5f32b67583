; A chain of operators of several types is one kernel.
; gpus: 1
; target: cuda
; emit: calls
fanwise 1
symbol N >= 0
graph @mixed(%x: f32[N,6], %zero: f32[1], %side: i64[N,6]) -> (y: f16[N,6]) {
  %less : bool[N,6] = less(%x, %zero)
  %chosen : i64[N,6] = where(%less, %side, %side)
  %half : i64[N,6] = div(%chosen, %side)
  %y : f16[N,6] = cast(%half) {to=f16}
  return %y
}
