//! Synchronised and ghost batch normalisation: statistics over replicas and over groups of rows.
//!
//! All statistics are computed in `f64`, in two passes: the mean first, then the squares of
//! differences from it. The one-pass form `E[x^2] - E[x]^2` would cancel for channels whose mean is
//! large beside their deviation.

use smallvec::{SmallVec, smallvec};

use super::super::output_use::OutputUse;
use super::super::{Action, Cause, Failure, InsertionPoint, Repair, Writer};
use super::steps::{Steps, Written};
use crate::ir::{ResultInfo, Value};
use crate::op::{BatchNormGrad, BatchNormTrain, Formula, Op, rules, setting_in};
use crate::types::{Claim, Code, DType, Dim, Shard, Tensor};

/// The running statistics of a batch normalisation and the results that hold their new values.
struct Running<'a> {
    norm: &'a BatchNormTrain,
    means: Value,
    vars: Value,
    new: [&'a ResultInfo; 2],
}

/// Ghost batch normalisation, or its gradients: each of `groups` groups of rows is normalised by
/// its own statistics. The choice of statistics allows the exchange that it needs. The running mean
/// and variance follow the statistics of the groups, weighted by their rows.
pub(in super::super) fn ghost(
    writer: &mut Writer<'_>,
    op: &Op,
    groups: u32,
    operands: &[Value],
    results: &[ResultInfo],
    at: &InsertionPoint,
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
    writer.record(cause, Action::GhostStatistics(groups), Some(*x));
    // A group may span replicas, so that its sums have to be exchanged.
    let allowed = std::mem::replace(&mut writer.options.allowed, Repair::Comm);
    writer.output_use = OutputUse::Other;
    let mut steps = Steps { writer: &mut *writer, at, result };
    let written = steps.ghost(groups, shard, operands, results, cause);
    writer.options.allowed = allowed;
    written?.ok_or(Failure::Refused)
}

/// The groups of rows of one normalisation, as values of the graph and as sizes.
struct Groups {
    /// The group of each own row of a replica, `i64`.
    group_of_row: Value,
    /// The number of elements of a channel in each group, `f64`.
    counts: Value,
    /// The number of elements of a channel in the batch, `f64`.
    total: Value,
    count: i64,
    rows: Dim,
    channels: Dim,
    rank: usize,
}

/// Sums from which the statistics of groups follow.
struct Moments {
    /// The rows minus the means of their groups.
    shifted: Value,
    /// The sums of the channels of each group.
    sums: Value,
    /// The sums of the squares of `shifted`.
    squares: Value,
}

impl Steps<'_, '_> {
    /// Batch normalisation by the statistics of all replicas, in `f64`: mean and variance over the
    /// batch, then `(x - mean) / sqrt(variance + epsilon) * scale + bias`.
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
        let x = self.cast_to_f64(*x, ".wide")?;
        let mean_of_x = self.step(".mean").reduce_mean(x, axes.clone(), true)?;
        let shifted = self.step(".shifted").sub(x, mean_of_x)?;
        let squares = self.step(".squares").mul(shifted, shifted)?;
        let variance = self.step(".variance").reduce_mean(squares, axes, true)?;
        let deviation = self.deviation(norm.epsilon, y, variance)?;
        let y = self.affine(shifted, deviation, *scale, *bias, y)?;
        let channels = self.writer.out.ty(*scale).shape.to_vec();
        let mut flat = |value| self.step(".channels").view(value, channels.clone());
        let current = [flat(mean_of_x)?, flat(variance)?];
        let running = Running { norm, means: *means, vars: *vars, new: [new_mean, new_var] };
        let [mean, var] = self.running(&running, current)?;
        Ok(Some(smallvec![y, mean, var]))
    }

    /// The gradients of batch normalisation by the statistics of all replicas, in `f64`, with the
    /// number `count` of elements of a channel and `normal = (x - mean) / deviation`:
    ///
    /// ```text
    /// dbias  = sum(dy)
    /// dscale = sum(dy * normal)
    /// dx     = scale / deviation * (dy - dbias / count - normal * dscale / count)
    /// ```
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
        // The operator takes `x` but not the statistics of the forward pass.
        let count = self.step(".count").dim(elements)?;
        let count = self.cast_to_f64(count, ".count")?;
        let (x, dy) = (self.cast_to_f64(*x, ".wide")?, self.cast_to_f64(*dy, ".wide")?);
        let total = self.step(".sum").reduce_sum(x, axes.clone(), true)?;
        let mean = self.step(".mean").div(total, count)?;
        let shifted = self.step(".shifted").sub(x, mean)?;
        let squares = self.step(".squares").mul(shifted, shifted)?;
        let squares = self.step(".squares").reduce_sum(squares, axes.clone(), true)?;
        let variance = self.step(".variance").div(squares, count)?;
        let deviation = self.deviation(norm.epsilon, dx, variance)?;
        let normal = self.step(".normal").div(shifted, deviation)?;
        let weighted = self.step(".weighted").mul(dy, normal)?;
        let sums = [
            self.step(".bias").reduce_sum(dy, axes.clone(), true)?,
            self.step(".scale").reduce_sum(weighted, axes, true)?,
        ];
        let mean_of_dy = self.step(".share").div(sums[0], count)?;
        let along = self.step(".share").div(sums[1], count)?;
        let along = self.step(".along").mul(normal, along)?;
        let rest = self.step(".rest").sub(dy, mean_of_dy)?;
        let rest = self.step(".rest").sub(rest, along)?;
        let column = [shape[1].clone()].into_iter().chain((2..shape.len()).map(|_| Dim::ONE));
        let scale = self.cast_to_f64(*scale, ".factor")?;
        let scale = self.step(".factor").view(scale, column.collect())?;
        let factor = self.step(".factor").div(scale, deviation)?;
        let value = self.step(".gradient").mul(rest, factor)?;
        let value = self.result(dx).convert(value, dx.ty.dtype)?;
        let mut flat = |value, result: &ResultInfo| {
            let value = self.step(".channels").view(value, vec![shape[1].clone()])?;
            self.result(result).convert(value, result.ty.dtype)
        };
        Ok(Some(smallvec![value, flat(sums[1], dscale)?, flat(sums[0], dbias)?]))
    }

    /// Batch normalisation or its gradients with the statistics of each group of rows.
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
        let x = self.cast_to_f64(*x, ".wide")?;
        let sums = self.sums(x, &groups)?;
        let mean = self.step(".mean").div(sums, groups.counts)?;
        let own_mean = self.gather_group(mean, &groups)?;
        let shifted = self.step(".shifted").sub(x, own_mean)?;
        let squares = self.step(".squares").mul(shifted, shifted)?;
        let squares = self.sums(squares, &groups)?;
        let moments = Moments { shifted, sums, squares };
        if let Op::BatchNormTrain(norm) = cause.op {
            return self.normal_of_groups(norm, operands, results, &groups, &moments);
        }
        let Op::BatchNormGrad(norm) = cause.op else { return Ok(None) };
        self.grad_of_groups(norm, operands, results, &groups, &moments)
    }

    /// The rows normalised by the statistics of their groups, and the running statistics.
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
        let variance = self.step(".variance").div(of.squares, groups.counts)?;
        let deviation = self.deviation(norm.epsilon, y, variance)?;
        let own_deviation = self.gather_group(deviation, groups)?;
        let y = self.affine(of.shifted, own_deviation, *scale, *bias, y)?;
        // Sums over groups divided by all elements: groups count by their number of rows.
        let mut all = |sums| {
            let all = self.over_groups(sums)?;
            self.step(".channels").div(all, groups.total)
        };
        let current = [all(of.sums)?, all(of.squares)?];
        let running = Running { norm, means: *means, vars: *vars, new: [new_mean, new_var] };
        let [mean, var] = self.running(&running, current)?;
        Ok(Some(smallvec![y, mean, var]))
    }

    /// The gradients of [`Self::normal_of_groups`]: rows by the statistics of their groups, scale
    /// and bias summed over all groups.
    fn grad_of_groups(
        &mut self,
        norm: &BatchNormGrad,
        operands: &[Value],
        results: &[ResultInfo],
        groups: &Groups,
        of: &Moments,
    ) -> Written {
        let ([_, scale, dy], [dx, dscale, dbias]) = (operands, results) else { return Ok(None) };
        let variance = self.step(".variance").div(of.squares, groups.counts)?;
        let deviation = self.deviation(norm.epsilon, dx, variance)?;
        let deviation = self.gather_group(deviation, groups)?;
        let normal = self.step(".normal").div(of.shifted, deviation)?;
        let dy = self.cast_to_f64(*dy, ".wide")?;
        let weighted = self.step(".weighted").mul(dy, normal)?;
        let sums = [self.sums(dy, groups)?, self.sums(weighted, groups)?];
        let mut share = |sums| {
            let share = self.step(".share").div(sums, groups.counts)?;
            self.gather_group(share, groups)
        };
        let (mean, along) = (share(sums[0])?, share(sums[1])?);
        let along = self.step(".along").mul(normal, along)?;
        let rest = self.step(".rest").sub(dy, mean)?;
        let rest = self.step(".rest").sub(rest, along)?;
        let ones = (2..groups.rank).map(|_| Dim::ONE);
        let column = std::iter::once(groups.channels.clone()).chain(ones).collect();
        let scale = self.cast_to_f64(*scale, ".factor")?;
        let scale = self.step(".factor").view(scale, column)?;
        let factor = self.step(".factor").div(scale, deviation)?;
        let value = self.step(".gradient").mul(rest, factor)?;
        let value = self.result(dx).convert(value, dx.ty.dtype)?;
        let mut all = |sums, result: &ResultInfo| {
            let all = self.over_groups(sums)?;
            self.result(result).convert(all, result.ty.dtype)
        };
        Ok(Some(smallvec![value, all(sums[1], dscale)?, all(sums[0], dbias)?]))
    }

    /// The sums over all groups.
    fn over_groups(&mut self, sums: Value) -> Result<Value, Failure> {
        self.step(".all_groups").reduce_sum(sums, vec![0], false)
    }

    /// The groups of the rows of `x`. Row `i` of `N` belongs to group `((i + 1) * G - 1) / N`: the
    /// largest `g` with `g*N/G <= i`, all divisions rounded down.
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
        let n = self.step(".n").dim(Dim::n())?;
        // Positions are numbered over the whole batch and then cut to own rows, so that groups do
        // not depend on the number of replicas.
        let row = self.step(".row").count_to(rows.clone(), DType::I64)?;
        let inner = self.integer(inner)?;
        // An axis of `inner * N` entries has `inner` entries for each row of the batch.
        let sample = self.step(".sample").div(row, inner)?;
        let factor = self.integer(count)?;
        let scaled = self.step(".scaled").mul(sample, factor)?;
        let rest = self.integer(count - 1)?;
        let group = self.step(".last").add(scaled, rest)?;
        let group = self.step(".group").div(group, n)?;
        let to = Claim::Shard(shard);
        let group_of_row = self.writer.redistribute(group, Claim::Invariant, to, cause)?;
        let groups = self.integer(count)?;
        let each = self.integer(each)?;
        // Group `g` ends before row `(g + 1) * N / G`; the differences of these ends are its rows.
        let ends = self.step(".end").count_to(Dim::from(count + 1), DType::I64)?;
        let ends = self.step(".end").mul(ends, n)?;
        let ends = self.step(".end").div(ends, groups)?;
        let after = self.step(".to").rows(ends, 0, Dim::ONE, (count + 1).into())?;
        let before = self.step(".from").rows(ends, 0, Dim::ZERO, count.into())?;
        let counts = self.step(".rows").sub(after, before)?;
        let counts = self.step(".count").mul(counts, each)?;
        let counts = self.cast_to_f64(counts, ".counts")?;
        let counts = self.step(".counts").view(counts, vec![count.into(), Dim::ONE])?;
        let total = self.step(".elements").mul(n, each)?;
        let total = self.cast_to_f64(total, ".total")?;
        Ok(Some(Groups {
            group_of_row,
            counts,
            total,
            count,
            rows,
            channels: shape[1].clone(),
            rank,
        }))
    }

    /// The sums of each channel over each group, `[G, C]`.
    fn sums(&mut self, x: Value, groups: &Groups) -> Result<Value, Failure> {
        let axes: Vec<i64> = (2..groups.rank).filter_map(|a| i64::try_from(a).ok()).collect();
        let x =
            if axes.is_empty() { x } else { self.step(".row_sums").reduce_sum(x, axes, false)? };
        self.step(".sums").segment_sum(x, groups.group_of_row, groups.count)
    }

    /// The values of its group for each row, in a shape that broadcasts over the rows.
    fn gather_group(&mut self, value: Value, groups: &Groups) -> Result<Value, Failure> {
        let rows = self.step(".of_rows").gather(value, groups.group_of_row, 0)?;
        if groups.rank == 2 {
            return Ok(rows);
        }
        let channels = [groups.rows.clone(), groups.channels.clone()];
        let shape = channels.into_iter().chain((2..groups.rank).map(|_| Dim::ONE)).collect();
        self.step(".columns").view(rows, shape)
    }

    /// The standard deviation `sqrt(variance + epsilon)`.
    fn deviation(
        &mut self,
        epsilon: f64,
        of: &ResultInfo,
        variance: Value,
    ) -> Result<Value, Failure> {
        let epsilon = self.constant(setting_in(epsilon, of.ty.dtype), ".epsilon")?;
        let above = self.step(".above").add(variance, epsilon)?;
        self.step(".deviation").sqrt(above)
    }

    /// `shifted / deviation * scale + bias`, with one scale and bias per channel, rounded to the
    /// type of `y`.
    fn affine(
        &mut self,
        shifted: Value,
        deviation: Value,
        scale: Value,
        bias: Value,
        y: &ResultInfo,
    ) -> Result<Value, Failure> {
        let mut value = self.step(".normal").div(shifted, deviation)?;
        let column: Vec<Dim> = self.writer.out.ty(scale).shape.to_vec();
        let ones = (2..y.ty.rank()).map(|_| Dim::ONE);
        let column: Vec<Dim> = column.into_iter().chain(ones).collect();
        let scale = self.cast_to_f64(scale, ".scale")?;
        let scale = self.step(".column").view(scale, column.clone())?;
        value = self.step(".affine").mul(value, scale)?;
        let bias = self.cast_to_f64(bias, ".bias")?;
        let bias = self.step(".column").view(bias, column)?;
        value = self.step(".affine").add(value, bias)?;
        self.result(y).convert(value, y.ty.dtype)
    }

    /// The new running mean and variance, `old * momentum + current * (1 - momentum)`.
    fn running(
        &mut self,
        running: &Running<'_>,
        [mean, var]: [Value; 2],
    ) -> Result<[Value; 2], Failure> {
        // An empty batch has no statistics (0 / 0): the running ones must stay, not become NaN.
        let any = self.step(".any").dim(Dim::n().minimum(&Dim::ONE))?;
        let any = self.step(".rows").convert(any, DType::Bool)?;
        let [new_mean, new_var] = running.new;
        let mut moved = |current, old, new: &ResultInfo| {
            let stays = setting_in(running.norm.momentum, new.ty.dtype);
            let (stay, change) =
                (self.constant(stays, ".stays")?, self.constant(1.0 - stays, ".changes")?);
            let old = self.cast_to_f64(old, ".running")?;
            let kept = self.step(".kept").mul(old, stay)?;
            let added = self.step(".added").mul(current, change)?;
            let sum = self.step(".moved").add(kept, added)?;
            let chosen = self.step(".new").choose(any, sum, old)?;
            self.result(new).convert(chosen, new.ty.dtype)
        };
        Ok([moved(mean, running.means, new_mean)?, moved(var, running.vars, new_var)?])
    }

    /// The value as `f64`.
    fn cast_to_f64(&mut self, value: Value, suffix: &str) -> Result<Value, Failure> {
        self.step(suffix).convert(value, DType::F64)
    }

    /// A scalar `f64`.
    fn constant(&mut self, value: f64, suffix: &str) -> Result<Value, Failure> {
        self.step(suffix).literal(Tensor::scalar(value))
    }

    /// A scalar `i64`.
    fn integer(&mut self, value: i64) -> Result<Value, Failure> {
        self.step(".number").literal(Tensor::scalar(value))
    }
}
