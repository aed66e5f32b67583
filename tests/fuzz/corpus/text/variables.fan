fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last {
  n = [N/2, N-(N/2)]
  o = [0, N/2]
}
param @w : f64[3,2] = "t#w" blake3:0000000000000001 mirror @dp
param @b : f64[2] = "t#b" blake3:0000000000000002 mirror @dp
param @vw : f64[3,2] = "t#vw" blake3:0000000000000003 mirror @dp
param @vb : f64[2] = "t#vb" blake3:0000000000000004 mirror @dp
param @rate : f64[] = "t#rate" blake3:0000000000000005 mirror @dp
param @decay : f64[] = "t#decay" blake3:0000000000000006 mirror @dp
param @steps : i64[] = "t#steps" blake3:0000000000000007 mirror @dp
param @mean : f64[3] = "t#mean" blake3:0000000000000008 mirror @dp
param @last : f64[3,2] = "t#last" blake3:0000000000000009 mirror @dp
param @weight : f64[] = "t#weight" blake3:000000000000000a mirror @dp
param @scaled : f64[3,2] = "t#scaled" blake3:000000000000000b mirror @dp
graph @train(%x: f64[N,3], %t: f64[N,2], %factor: f64[]) -> (loss: f64[], sum_w: f64[3,2]) {
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %x.r0 : f64[n0@dp,3] = slice(%x) {axes=[0], ends=[N/2], starts=[0], steps=[1]}
    %t.r0 : f64[n0@dp,2] = slice(%t) {axes=[0], ends=[N/2], starts=[0], steps=[1]}
  }
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %x.r0.d : f64[n0@dp,3] = copy(%x.r0)
    %t.r0.d : f64[n0@dp,2] = copy(%t.r0)
    %factor.r0.d : f64[] = copy(%factor)
    %scaled.r0 : f64[3,2] = mul(@w, %factor.r0.d)
    %p.r0 : f64[n0@dp,2] = matmul(%x.r0.d, %scaled.r0)
    %y.r0 : f64[n0@dp,2] = add(%p.r0, @b)
    %e.r0 : f64[n0@dp,2] = sub(%y.r0, %t.r0.d)
    %s.r0 : f64[n0@dp,2] = mul(%e.r0, %e.r0)
    %sum.r0 : f64[] = reduce_sum(%s.r0) {axes=[0, 1], keepdims=false}
    %n.r0 : i64[] = dims() {scalar=true, values=[max(1,N)]}
    %nf.r0 : f64[] = cast(%n.r0) {to=f64}
    %xt.r0 : f64[3,n0@dp] = transpose(%x.r0.d) {perm=[1, 0]}
    %gw.r0 : f64[3,2] = matmul(%xt.r0, %e.r0)
    %gb.r0 : f64[2] = reduce_sum(%e.r0) {axes=[0], keepdims=false}
    %sx.r0 : f64[3] = reduce_sum(%x.r0.d) {axes=[0], keepdims=false}
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %x.r1 : f64[n1@dp,3] = slice(%x) {axes=[0], ends=[N], starts=[N/2], steps=[1]}
    %t.r1 : f64[n1@dp,2] = slice(%t) {axes=[0], ends=[N], starts=[N/2], steps=[1]}
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %x.r1.d : f64[n1@dp,3] = copy(%x.r1)
    %t.r1.d : f64[n1@dp,2] = copy(%t.r1)
    %factor.r1.d : f64[] = copy(%factor)
    %scaled.r1 : f64[3,2] = mul(@w, %factor.r1.d)
    %p.r1 : f64[n1@dp,2] = matmul(%x.r1.d, %scaled.r1)
    %y.r1 : f64[n1@dp,2] = add(%p.r1, @b)
    %e.r1 : f64[n1@dp,2] = sub(%y.r1, %t.r1.d)
    %s.r1 : f64[n1@dp,2] = mul(%e.r1, %e.r1)
    %sum.r1 : f64[] = reduce_sum(%s.r1) {axes=[0, 1], keepdims=false}
    %n.r1 : i64[] = dims() {scalar=true, values=[max(1,N)]}
    %nf.r1 : f64[] = cast(%n.r1) {to=f64}
    %xt.r1 : f64[3,n1@dp] = transpose(%x.r1.d) {perm=[1, 0]}
    %gw.r1 : f64[3,2] = matmul(%xt.r1, %e.r1)
    %gb.r1 : f64[2] = reduce_sum(%e.r1) {axes=[0], keepdims=false}
    %sx.r1 : f64[3] = reduce_sum(%x.r1.d) {axes=[0], keepdims=false}
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %sum.r0.h : f64[] = copy(%sum.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %sum.r1.h : f64[] = copy(%sum.r1)
  }
  on cpu:0 {
    %sum.all : f64[] = all_reduce(%sum.r0.h, %sum.r1.h) {by=sum, rows=[N/2, N-(N/2)]}
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %gw.r0.h : f64[3,2] = copy(%gw.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %gw.r1.h : f64[3,2] = copy(%gw.r1)
  }
  on cpu:0 {
    %gw.all : f64[3,2] = all_reduce(%gw.r0.h, %gw.r1.h) {by=sum, rows=[N/2, N-(N/2)]}
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %gb.r0.h : f64[2] = copy(%gb.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %gb.r1.h : f64[2] = copy(%gb.r1)
  }
  on cpu:0 {
    %gb.all : f64[2] = all_reduce(%gb.r0.h, %gb.r1.h) {by=sum, rows=[N/2, N-(N/2)]}
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %sx.r0.h : f64[3] = copy(%sx.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %sx.r1.h : f64[3] = copy(%sx.r1)
  }
  on cpu:0 {
    %sx.all : f64[3] = all_reduce(%sx.r0.h, %sx.r1.h) {by=sum, rows=[N/2, N-(N/2)]}
  }
  on gpu:0 replica @dp[0] if n0@dp > 0 {
    %sum.all.r0.d : f64[] = copy(%sum.all)
    %loss.r0 : f64[] = div(%sum.all.r0.d, %nf.r0)
    %gw.all.r0.d : f64[3,2] = copy(%gw.all)
    %gwn.r0 : f64[3,2] = div(%gw.all.r0.d, %nf.r0)
    %sum_w.r0 : f64[3,2] = tanh(%gwn.r0)
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %loss.r0.h : f64[] = copy(%loss.r0)
    %sum_w.r0.h : f64[3,2] = copy(%sum_w.r0)
  }
  on gpu:1 replica @dp[1] if n1@dp > 0 {
    %sum.all.r1.d : f64[] = copy(%sum.all)
    %loss.r1 : f64[] = div(%sum.all.r1.d, %nf.r1)
    %gw.all.r1.d : f64[3,2] = copy(%gw.all)
    %gwn.r1 : f64[3,2] = div(%gw.all.r1.d, %nf.r1)
    %sum_w.r1 : f64[3,2] = tanh(%gwn.r1)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %loss.r1.h : f64[] = copy(%loss.r1)
    %sum_w.r1.h : f64[3,2] = copy(%sum_w.r1)
  }
  on cpu:0 {
    %loss : f64[] = first(%loss.r0.h, %loss.r1.h)
    %sum_w : f64[3,2] = first(%sum_w.r0.h, %sum_w.r1.h)
  }
  on cpu:0 replica @dp[0] if n0@dp > 0 {
    %gwn.r0.h : f64[3,2] = copy(%gwn.r0)
  }
  on cpu:0 replica @dp[1] if n1@dp > 0 {
    %gwn.r1.h : f64[3,2] = copy(%gwn.r1)
  }
  on cpu:0 {
    %gwn.first : f64[3,2] = first(%gwn.r0.h, %gwn.r1.h)
  }
  on gpu:0 {
    %factor.d0 : f64[] = copy(%factor)
    %scaled.d0 : f64[3,2] = mul(@w, %factor.d0)
    %n.d0 : i64[] = dims() {scalar=true, values=[max(1,N)]}
    %nf.d0 : f64[] = cast(%n.d0) {to=f64}
    %gb.all.d0 : f64[2] = copy(%gb.all)
    %gbn.d0 : f64[2] = div(%gb.all.d0, %nf.d0)
    %half.d0 : f64[] = constant() {value=f64[] [0.5]}
    %hw.d0 : f64[3,2] = mul(@vw, %half.d0)
    %hb.d0 : f64[2] = mul(@vb, %half.d0)
    %gwn.d0 : f64[3,2] = copy(%gwn.first)
    %vw.new.d0 : f64[3,2] = add(%hw.d0, %gwn.d0)
    %vb.new.d0 : f64[2] = add(%hb.d0, %gbn.d0)
    %dw.d0 : f64[3,2] = mul(%vw.new.d0, @rate)
    %db.d0 : f64[2] = mul(%vb.new.d0, @rate)
    %w.new.d0 : f64[3,2] = sub(@w, %dw.d0)
    %b.new.d0 : f64[2] = sub(@b, %db.d0)
    %rate.new.d0 : f64[] = mul(@rate, @decay)
    %one.d0 : i64[] = constant() {value=i64[] [1]}
    %steps.new.d0 : i64[] = add(@steps, %one.d0)
    %sx.all.d0 : f64[3] = copy(%sx.all)
    %mx.d0 : f64[3] = div(%sx.all.d0, %nf.d0)
    %change.d0 : f64[3] = sub(%mx.d0, @mean)
    %part.d0 : f64[3] = mul(%change.d0, %half.d0)
    %mean.new.d0 : f64[3] = add(@mean, %part.d0)
    %loss.d0 : f64[] = copy(%loss)
  }
  on gpu:1 {
    %factor.d1 : f64[] = copy(%factor)
    %scaled.d1 : f64[3,2] = mul(@w, %factor.d1)
    %n.d1 : i64[] = dims() {scalar=true, values=[max(1,N)]}
    %nf.d1 : f64[] = cast(%n.d1) {to=f64}
    %gb.all.d1 : f64[2] = copy(%gb.all)
    %gbn.d1 : f64[2] = div(%gb.all.d1, %nf.d1)
    %half.d1 : f64[] = constant() {value=f64[] [0.5]}
    %hw.d1 : f64[3,2] = mul(@vw, %half.d1)
    %hb.d1 : f64[2] = mul(@vb, %half.d1)
    %gwn.d1 : f64[3,2] = copy(%gwn.first)
    %vw.new.d1 : f64[3,2] = add(%hw.d1, %gwn.d1)
    %vb.new.d1 : f64[2] = add(%hb.d1, %gbn.d1)
    %dw.d1 : f64[3,2] = mul(%vw.new.d1, @rate)
    %db.d1 : f64[2] = mul(%vb.new.d1, @rate)
    %w.new.d1 : f64[3,2] = sub(@w, %dw.d1)
    %b.new.d1 : f64[2] = sub(@b, %db.d1)
    %rate.new.d1 : f64[] = mul(@rate, @decay)
    %one.d1 : i64[] = constant() {value=i64[] [1]}
    %steps.new.d1 : i64[] = add(@steps, %one.d1)
    %sx.all.d1 : f64[3] = copy(%sx.all)
    %mx.d1 : f64[3] = div(%sx.all.d1, %nf.d1)
    %change.d1 : f64[3] = sub(%mx.d1, @mean)
    %part.d1 : f64[3] = mul(%change.d1, %half.d1)
    %mean.new.d1 : f64[3] = add(@mean, %part.d1)
    %loss.d1 : f64[] = copy(%loss)
  }
  update @w = %w.new.d0, %w.new.d1
  update @b = %b.new.d0, %b.new.d1
  update @vw = %vw.new.d0, %vw.new.d1
  update @vb = %vb.new.d0, %vb.new.d1
  update @rate = %rate.new.d0, %rate.new.d1
  update @steps = %steps.new.d0, %steps.new.d1
  update @mean = %mean.new.d0, %mean.new.d1
  update @last = @w, @w
  update @weight = %loss.d0, %loss.d1
  update @scaled = %scaled.d0, %scaled.d1
  return %loss, %sum_w  ; reassociated, reassociated
}
