; gpus: 2
fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4], %z: f32[3,N,2]) -> (y: f32[N,4], w: f32[3,N,2]) {
  %rate : f32[] = constant() {value=f32[] [0.25]}
  %u : f32[N,4] = random_uniform() {seed=7, shape=[N,4]}
  %keep : bool[N,4] = greater(%u, %rate)
  %m : f32[N,4] = cast(%keep) {to=f32}
  %y : f32[N,4] = mul(%x, %m)
  %v : f32[3,N,2] = random_normal() {seed=8, shape=[3,N,2]}
  %w : f32[3,N,2] = add(%z, %v)
  return %y, %w
}
