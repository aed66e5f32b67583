//! Batch normalisation by statistics that replicas make together.

use smallvec::{SmallVec, smallvec};

use super::super::tails::Tail;
use super::super::{Action, At, Cause, Failure, Repair, Writer};
use super::{Formula, Written};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    BatchNormGrad, BatchNormTrain, Binary, Cast, Constant, Dims, Gather, Op, Range, Reduce,
    Reshape, SegmentSum, Slice, Unary, Where, rules,
};
use crate::types::{Claim, Code, DType, Dim, Shard, Tensor};

/// What normalises `x`, the running mean and variance, and what they become.
struct Running<'a> {
    norm: &'a BatchNormTrain,
    means: Value,
    vars: Value,
    new: [&'a ResultInfo; 2],
}

/// Batch normalisation of each of `groups` groups of rows by its own statistics, or its gradients,
/// whatever repairs are allowed. The running mean and variance follow those of the groups, weighted
/// by their rows.
pub(in super::super) fn ghost(
    writer: &mut Writer<'_>,
    op: &Op,
    groups: u32,
    operands: &[Value],
    results: &[ResultInfo],
    at: &At,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    let (Some(x), Some(result)) = (operands.first(), results.first()) else {
        return Err(Failure::Refused);
    };
    let shard = match writer.claim(*x) {
        Claim::Invariant => return writer.write(op, operands, results, at),
        Claim::Shard(shard) if shard.axis == 0 && shard.outer == 1 => shard,
        Claim::Shard(_) => return Err(Failure::Refused),
        Claim::Partial(_) | Claim::Own | Claim::Mixed => return Err(Failure::Mixed),
    };
    let refusal = rules::refuse(Code::BatchStatistics, 0, "uses statistics of the whole batch");
    let cause = Cause { refusal: &refusal, op, at };
    writer.note(cause, Action::GhostStatistics(groups), Some(*x));
    let allowed = std::mem::replace(&mut writer.options.allowed, Repair::Comm);
    writer.tail = Tail::Used;
    let mut formula = Formula { writer: &mut *writer, at, result };
    let written = formula.ghost(groups, shard, operands, results, cause);
    writer.options.allowed = allowed;
    written?.ok_or(Failure::Refused)
}

/// The groups of rows.
struct Groups {
    /// The group of each row that a replica has.
    own: Value,
    /// The elements of a channel in each group, `f64`.
    counts: Value,
    /// Those of a channel in the batch, `f64`.
    total: Value,
    count: i64,
    rows: Dim,
    channels: Dim,
    rank: usize,
}

/// What statistics of groups are made of.
struct Moments {
    /// The rows without the means of their groups.
    shifted: Value,
    /// The sums of the channels of each group.
    sums: Value,
    /// Those of the squares of `shifted`.
    squares: Value,
}

impl Formula<'_, '_> {
    /// Batch normalisation by the statistics of all replicas, in `f64`: two means over the batch
    /// and what follows from them.
    pub(super) fn batch_norm(
        &mut self,
        norm: &BatchNormTrain,
        operands: &[Value],
        results: &[ResultInfo],
    ) -> Written {
        let ([x, scale, bias, means, vars], [y, new_mean, new_var]) = (operands, results) else {
            return Ok(None);
        };
        let rank = self.writer.out.ty(*x).rank();
        let axes: Vec<i64> =
            (0..rank).filter(|a| *a != 1).filter_map(|a| i64::try_from(a).ok()).collect();
        let mean = || Reduce::Mean { axes: axes.clone(), keepdims: true };
        let x = self.wide(*x, ".wide")?;
        let mean_of_x = self.step(mean(), &[x], ".mean")?;
        let shifted = self.step(Binary::Sub, &[x, mean_of_x], ".shifted")?;
        let squares = self.step(Binary::Mul, &[shifted, shifted], ".squares")?;
        let variance = self.step(mean(), &[squares], ".variance")?;
        let deviation = self.deviation(norm.epsilon, variance)?;
        let y = self.affine(shifted, deviation, *scale, *bias, y)?;
        let channels = self.writer.out.ty(*scale).shape.to_vec();
        let mut flat =
            |value| self.step(Reshape { shape: channels.clone() }, &[value], ".channels");
        let current = [flat(mean_of_x)?, flat(variance)?];
        let running = Running { norm, means: *means, vars: *vars, new: [new_mean, new_var] };
        let [mean, var] = self.running(&running, current)?;
        Ok(Some(smallvec![y, mean, var]))
    }

    /// The gradients of batch normalisation by the statistics of all replicas, in `f64`.
    pub(super) fn batch_norm_grad(
        &mut self,
        norm: &BatchNormGrad,
        operands: &[Value],
        results: &[ResultInfo],
    ) -> Written {
        let ([x, scale, dy], [dx, dscale, dbias]) = (operands, results) else { return Ok(None) };
        let shape = self.writer.out.ty(*x).shape.clone();
        let axes: Vec<i64> =
            (0..shape.len()).filter(|a| *a != 1).filter_map(|a| i64::try_from(a).ok()).collect();
        let elements = shape.iter().enumerate().filter(|(a, _)| *a != 1);
        let elements = elements.fold(Dim::ONE, |count, (_, d)| count * d.clone());
        let count = self.step(Dims { scalar: true, values: vec![elements] }, &[], ".count")?;
        let count = self.wide(count, ".count")?;
        let (x, dy) = (self.wide(*x, ".wide")?, self.wide(*dy, ".wide")?);
        let sum = || Reduce::Sum { axes: axes.clone(), keepdims: true };
        let total = self.step(sum(), &[x], ".sum")?;
        let mean = self.step(Binary::Div, &[total, count], ".mean")?;
        let shifted = self.step(Binary::Sub, &[x, mean], ".shifted")?;
        let squares = self.step(Binary::Mul, &[shifted, shifted], ".squares")?;
        let squares = self.step(sum(), &[squares], ".squares")?;
        let variance = self.step(Binary::Div, &[squares, count], ".variance")?;
        let deviation = self.deviation(norm.epsilon, variance)?;
        let normal = self.step(Binary::Div, &[shifted, deviation], ".normal")?;
        let weighted = self.step(Binary::Mul, &[dy, normal], ".weighted")?;
        let sums = [self.step(sum(), &[dy], ".bias")?, self.step(sum(), &[weighted], ".scale")?];
        // scale / deviation * (dy - mean of dy - normal * mean of dy * normal)
        let mean_of_dy = self.step(Binary::Div, &[sums[0], count], ".share")?;
        let along = self.step(Binary::Div, &[sums[1], count], ".share")?;
        let along = self.step(Binary::Mul, &[normal, along], ".along")?;
        let rest = self.step(Binary::Sub, &[dy, mean_of_dy], ".rest")?;
        let rest = self.step(Binary::Sub, &[rest, along], ".rest")?;
        let column = [shape[1].clone()].into_iter().chain((2..shape.len()).map(|_| Dim::ONE));
        let scale = self.wide(*scale, ".factor")?;
        let scale = self.step(Reshape { shape: column.collect() }, &[scale], ".factor")?;
        let factor = self.step(Binary::Div, &[scale, deviation], ".factor")?;
        let value = self.step(Binary::Mul, &[rest, factor], ".gradient")?;
        let value = self.one(&Cast { to: dx.ty.dtype }.into(), &[value], dx.clone())?;
        let mut flat = |value, result: &ResultInfo| {
            let value =
                self.step(Reshape { shape: vec![shape[1].clone()] }, &[value], ".channels")?;
            self.one(&Cast { to: result.ty.dtype }.into(), &[value], result.clone())
        };
        Ok(Some(smallvec![value, flat(sums[1], dscale)?, flat(sums[0], dbias)?]))
    }

    /// The same with the statistics of each group of rows.
    fn ghost(
        &mut self,
        groups: u32,
        shard: Shard,
        operands: &[Value],
        results: &[ResultInfo],
        cause: Cause<'_>,
    ) -> Written {
        let Some(x) = operands.first() else { return Ok(None) };
        let Some(groups) = self.groups(i64::from(groups), *x, shard, cause)? else {
            return Ok(None);
        };
        let x = self.wide(*x, ".wide")?;
        let sums = self.sums(x, &groups)?;
        let mean = self.step(Binary::Div, &[sums, groups.counts], ".mean")?;
        let own_mean = self.of_rows(mean, &groups)?;
        let shifted = self.step(Binary::Sub, &[x, own_mean], ".shifted")?;
        let squares = self.step(Binary::Mul, &[shifted, shifted], ".squares")?;
        let squares = self.sums(squares, &groups)?;
        let moments = Moments { shifted, sums, squares };
        if let Op::BatchNormTrain(norm) = cause.op {
            return self.normal_of_groups(norm, operands, results, &groups, &moments);
        }
        let Op::BatchNormGrad(norm) = cause.op else { return Ok(None) };
        self.grad_of_groups(norm, operands, results, &groups, &moments)
    }

    /// The rows normalised by the statistics of their groups.
    fn normal_of_groups(
        &mut self,
        norm: &BatchNormTrain,
        operands: &[Value],
        results: &[ResultInfo],
        groups: &Groups,
        of: &Moments,
    ) -> Written {
        let ([_, scale, bias, means, vars], [y, new_mean, new_var]) = (operands, results) else {
            return Ok(None);
        };
        let variance = self.step(Binary::Div, &[of.squares, groups.counts], ".variance")?;
        let deviation = self.deviation(norm.epsilon, variance)?;
        let own_deviation = self.of_rows(deviation, groups)?;
        let y = self.affine(of.shifted, own_deviation, *scale, *bias, y)?;
        let mut all = |sums| {
            let all = self.over_groups(sums)?;
            self.step(Binary::Div, &[all, groups.total], ".channels")
        };
        let current = [all(of.sums)?, all(of.squares)?];
        let running = Running { norm, means: *means, vars: *vars, new: [new_mean, new_var] };
        let [mean, var] = self.running(&running, current)?;
        Ok(Some(smallvec![y, mean, var]))
    }

    /// The gradients of that: of the rows those of their groups, of scale and bias the sums over
    /// all.
    fn grad_of_groups(
        &mut self,
        norm: &BatchNormGrad,
        operands: &[Value],
        results: &[ResultInfo],
        groups: &Groups,
        of: &Moments,
    ) -> Written {
        let ([_, scale, dy], [dx, dscale, dbias]) = (operands, results) else { return Ok(None) };
        let variance = self.step(Binary::Div, &[of.squares, groups.counts], ".variance")?;
        let deviation = self.deviation(norm.epsilon, variance)?;
        let deviation = self.of_rows(deviation, groups)?;
        let normal = self.step(Binary::Div, &[of.shifted, deviation], ".normal")?;
        let dy = self.wide(*dy, ".wide")?;
        let weighted = self.step(Binary::Mul, &[dy, normal], ".weighted")?;
        let sums = [self.sums(dy, groups)?, self.sums(weighted, groups)?];
        let mut share = |sums| {
            let share = self.step(Binary::Div, &[sums, groups.counts], ".share")?;
            self.of_rows(share, groups)
        };
        let (mean, along) = (share(sums[0])?, share(sums[1])?);
        let along = self.step(Binary::Mul, &[normal, along], ".along")?;
        let rest = self.step(Binary::Sub, &[dy, mean], ".rest")?;
        let rest = self.step(Binary::Sub, &[rest, along], ".rest")?;
        let ones = (2..groups.rank).map(|_| Dim::ONE);
        let column = std::iter::once(groups.channels.clone()).chain(ones).collect();
        let scale = self.wide(*scale, ".factor")?;
        let scale = self.step(Reshape { shape: column }, &[scale], ".factor")?;
        let factor = self.step(Binary::Div, &[scale, deviation], ".factor")?;
        let value = self.step(Binary::Mul, &[rest, factor], ".gradient")?;
        let value = self.one(&Cast { to: dx.ty.dtype }.into(), &[value], dx.clone())?;
        let mut all = |sums, result: &ResultInfo| {
            let all = self.over_groups(sums)?;
            self.one(&Cast { to: result.ty.dtype }.into(), &[all], result.clone())
        };
        Ok(Some(smallvec![value, all(sums[1], dscale)?, all(sums[0], dbias)?]))
    }

    /// The sums over all groups.
    fn over_groups(&mut self, sums: Value) -> Result<Value, Failure> {
        let all = Reduce::Sum { axes: vec![0], keepdims: false };
        self.step(all, &[sums], ".all_groups")
    }

    /// The groups of the rows of `x`. Row `i` of `N` belongs to the group `((i + 1) * G - 1) / N`,
    /// which is the one whose rows begin at or before it and end behind it.
    fn groups(
        &mut self,
        count: i64,
        x: Value,
        shard: Shard,
        cause: Cause<'_>,
    ) -> Result<Option<Groups>, Failure> {
        let shape = self.writer.out.ty(x).shape.clone();
        let (rank, rows) = (shape.len(), shape[0].clone());
        let (Some(width), Ok(inner)) = (
            shape.iter().skip(2).try_fold(1i64, |p, d| p.checked_mul(d.as_const()?)),
            i64::try_from(shard.inner),
        ) else {
            return Ok(None);
        };
        let Some(each) = inner.checked_mul(width) else { return Ok(None) };
        let n = self.step(Dims { scalar: true, values: vec![Dim::n()] }, &[], ".n")?;
        let range = |limit| Range { delta: 1, dtype: DType::I64, limit, start: Dim::ZERO };
        let mut group = self.step(range(rows.clone()), &[], ".row")?;
        let steps = [
            (Binary::Div, inner, ".sample"),
            (Binary::Mul, count, ".scaled"),
            (Binary::Add, count - 1, ".last"),
        ];
        for (op, by, name) in steps {
            let by = self.integer(by)?;
            group = self.step(op, &[group, by], name)?;
        }
        let group = self.step(Binary::Div, &[group, n], ".group")?;
        let to = Claim::Shard(shard);
        let own = self.writer.bring(group, Claim::Invariant, to, cause)?;
        let groups = self.integer(count)?;
        let each = self.integer(each)?;
        let ends = self.step(range(Dim::from(count + 1)), &[], ".end")?;
        let ends = self.step(Binary::Mul, &[ends, n], ".end")?;
        let ends = self.step(Binary::Div, &[ends, groups], ".end")?;
        let after = self.step(Slice::rows(0, Dim::ONE, (count + 1).into()), &[ends], ".to")?;
        let before = self.step(Slice::rows(0, Dim::ZERO, count.into()), &[ends], ".from")?;
        let counts = self.step(Binary::Sub, &[after, before], ".rows")?;
        let counts = self.step(Binary::Mul, &[counts, each], ".count")?;
        let counts = self.wide(counts, ".counts")?;
        let shape_of_counts = Reshape { shape: vec![count.into(), Dim::ONE] };
        let counts = self.step(shape_of_counts, &[counts], ".counts")?;
        let total = self.step(Binary::Mul, &[n, each], ".elements")?;
        let total = self.wide(total, ".total")?;
        Ok(Some(Groups { own, counts, total, count, rows, channels: shape[1].clone(), rank }))
    }

    /// The sums of the channels of each group.
    fn sums(&mut self, x: Value, groups: &Groups) -> Result<Value, Failure> {
        let axes: Vec<i64> = (2..groups.rank).filter_map(|a| i64::try_from(a).ok()).collect();
        let x = if axes.is_empty() {
            x
        } else {
            self.step(Reduce::Sum { axes, keepdims: false }, &[x], ".row_sums")?
        };
        self.step(SegmentSum { segments: groups.count, wide: false }, &[x, groups.own], ".sums")
    }

    /// For each row the values of its group.
    fn of_rows(&mut self, value: Value, groups: &Groups) -> Result<Value, Failure> {
        let rows = self.step(Gather { axis: 0 }, &[value, groups.own], ".of_rows")?;
        if groups.rank == 2 {
            return Ok(rows);
        }
        let channels = [groups.rows.clone(), groups.channels.clone()];
        let shape = channels.into_iter().chain((2..groups.rank).map(|_| Dim::ONE)).collect();
        self.step(Reshape { shape }, &[rows], ".columns")
    }

    /// The square root of the variance and the epsilon.
    fn deviation(&mut self, epsilon: f32, variance: Value) -> Result<Value, Failure> {
        let epsilon = self.constant(epsilon.into(), ".epsilon")?;
        let above = self.step(Binary::Add, &[variance, epsilon], ".above")?;
        self.step(Unary::Sqrt, &[above], ".deviation")
    }

    /// `shifted / deviation * scale + bias`, the last two one number for each channel, rounded to
    /// the type of `y`.
    fn affine(
        &mut self,
        shifted: Value,
        deviation: Value,
        scale: Value,
        bias: Value,
        y: &ResultInfo,
    ) -> Result<Value, Failure> {
        let mut value = self.step(Binary::Div, &[shifted, deviation], ".normal")?;
        let column: Vec<Dim> = self.writer.out.ty(scale).shape.to_vec();
        let ones = (2..y.ty.rank()).map(|_| Dim::ONE);
        let column: Vec<Dim> = column.into_iter().chain(ones).collect();
        for (op, factor, name) in [(Binary::Mul, scale, ".scale"), (Binary::Add, bias, ".bias")] {
            let factor = self.wide(factor, name)?;
            let factor = self.step(Reshape { shape: column.clone() }, &[factor], ".column")?;
            value = self.step(op, &[value, factor], ".affine")?;
        }
        self.one(&Cast { to: y.ty.dtype }.into(), &[value], y.clone())
    }

    /// The running mean and variance, which stay where the batch is empty.
    fn running(
        &mut self,
        running: &Running<'_>,
        [mean, var]: [Value; 2],
    ) -> Result<[Value; 2], Failure> {
        let some = Dims { scalar: true, values: vec![Dim::n().minimum(&Dim::ONE)] };
        let any = self.step(some, &[], ".any")?;
        let any = self.step(Cast { to: DType::Bool }, &[any], ".rows")?;
        let [new_mean, new_var] = running.new;
        let mut moved = |current, old, new: &ResultInfo| {
            let stays = f64::from(running.norm.momentum);
            let (stay, change) =
                (self.constant(stays, ".stays")?, self.constant(1.0 - stays, ".changes")?);
            let old = self.wide(old, ".running")?;
            let kept = self.step(Binary::Mul, &[old, stay], ".kept")?;
            let added = self.step(Binary::Mul, &[current, change], ".added")?;
            let sum = self.step(Binary::Add, &[kept, added], ".moved")?;
            let chosen = self.step(Where {}, &[any, sum, old], ".new")?;
            self.one(&Cast { to: new.ty.dtype }.into(), &[chosen], new.clone())
        };
        Ok([moved(mean, running.means, new_mean)?, moved(var, running.vars, new_var)?])
    }

    fn wide(&mut self, value: Value, suffix: &str) -> Result<Value, Failure> {
        self.step(Cast { to: DType::F64 }, &[value], suffix)
    }

    /// A scalar `f64`.
    fn constant(&mut self, value: f64, suffix: &str) -> Result<Value, Failure> {
        let value = Tensor::new(&[], &[value]).map_err(|_| Failure::Refused)?;
        self.step(Constant { value }, &[], suffix)
    }

    /// A scalar `i64`.
    fn integer(&mut self, value: i64) -> Result<Value, Failure> {
        let value = Tensor::new(&[], &[value]).map_err(|_| Failure::Refused)?;
        self.step(Constant { value }, &[], ".number")
    }
}
