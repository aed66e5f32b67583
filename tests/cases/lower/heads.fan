; target: cpu
; emit: program
fanwise 1
symbol N >= 0
graph @heads(%q: f32[N,3,2,4], %k: f32[N,2,4,3], %v: f32[N,3,2,4], %w: f32[N,3,2,4], %mask: f32[3]) -> (joined: f32[N,3,8], shown: f32[N,2,3,4], other: f32[N,3,8], scaled: f32[N,3,2,4], joined_too: f32[2*N,3,2,4], fifth: f32[N,2,3,3], seen: f32[N,2,3]) {
  ; Products alone read what is transposed, on the left and on the right, and give it.
  %q.heads : f32[N,2,3,4] = transpose(%q) {perm=[0, 2, 1, 3]}
  %scores : f32[N,2,3,3] = matmul(%q.heads, %k)
  %masked : f32[N,2,3,3] = add(%scores, %mask)
  %v.heads : f32[N,2,3,4] = transpose(%v) {perm=[0, 2, 1, 3]}
  %mixed : f32[N,2,3,4] = matmul(%masked, %v.heads)
  %apart : f32[N,3,2,4] = transpose(%mixed) {perm=[0, 2, 1, 3]}
  %joined : f32[N,3,8] = reshape(%apart) {shape=[N, 3, 8]}
  ; An output is row-major; so is what ends in a chain.
  %shown : f32[N,2,3,4] = matmul(%masked, %v.heads)
  %again : f32[N,3,2,4] = transpose(%shown) {perm=[0, 2, 1, 3]}
  %other : f32[N,3,8] = reshape(%again) {shape=[N, 3, 8]}
  %third : f32[N,2,3,4] = matmul(%masked, %v.heads)
  %tanh : f32[N,2,3,4] = tanh(%third)
  %scaled : f32[N,3,2,4] = transpose(%tanh) {perm=[0, 2, 1, 3]}
  ; A part of a concatenation is written there.
  %fourth : f32[N,2,3,4] = matmul(%masked, %v.heads)
  %part : f32[N,3,2,4] = transpose(%fourth) {perm=[0, 2, 1, 3]}
  %joined_too : f32[2*N,3,2,4] = concat(%q, %part) {axis=0}
  ; Others read it, too.
  %w.heads : f32[N,2,3,4] = transpose(%w) {perm=[0, 2, 1, 3]}
  %fifth : f32[N,2,3,3] = matmul(%w.heads, %k)
  %seen : f32[N,2,3] = reduce_sum(%w.heads) {axes=[3], keepdims=false}
  return %joined, %shown, %other, %scaled, %joined_too, %fifth, %seen
}
