//! Synchronised and ghost batch normalisation: statistics over replicas and over groups of rows.
//!
//! Replicas exchange one message for each direction of a synchronised normalisation: the moments of
//! their rows, and two sums for the gradients. Statistics of groups are computed step by step.
//!
//! All statistics are computed in `f64`, in two passes: the mean first, then the squares of
//! differences from it. The one-pass form `E[x^2] - E[x]^2` would cancel for channels whose mean is
//! large beside their deviation.

use smallvec::{SmallVec, smallvec};

use super::super::output_use::OutputUse;
use super::super::{Action, Cause, Failure, InsertionPoint, Repair, Writer};
use super::steps::{Steps, Written};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    BatchMoments, BatchNormApply, BatchNormApplyGrad, BatchNormGrad, BatchNormSums, BatchNormTrain,
    Formula, Op, rules, setting_in,
};
use crate::types::{Claim, Code, DType, Dim, Shard, Tensor};

/// The running statistics of a batch normalisation and the results that hold their new values.
struct Running<'a> {
    norm: &'a BatchNormTrain,
    means: Value,
    vars: Value,
    new: [&'a ResultInfo; 2],
    /// The elements of a channel, or as many as are 0 where these are.
    elements: Dim,
}

/// The numbers of moments, by their places on the first axis.
const COUNT: i64 = 0;
const MEAN: i64 = 1;
const SQUARES: i64 = 2;

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
    /// Batch normalisation by the statistics of all replicas: each computes the moments of its
    /// rows, which are all-reduced as one message, and normalises its rows by those of all.
    pub(super) fn batch_norm(
        &mut self,
        norm: &BatchNormTrain,
        operands: &[Value],
        results: &[ResultInfo],
    ) -> Written {
        let ([x, scale, bias, means, vars], [y, new_mean, new_var]) = (operands, results) else {
            return Ok(None);
        };
        let moments = self.moments(*x)?;
        let apply = BatchNormApply { epsilon: norm.epsilon };
        let y = self.result(y).op(apply, &[*x, *scale, *bias, moments])?;
        let (mean, variance) = (self.of_channels(moments, MEAN)?, self.variance(moments)?);
        let (new, elements) = ([new_mean, new_var], self.elements(*x));
        let running = Running { norm, means: *means, vars: *vars, new, elements };
        let [mean, var] = self.running(&running, [mean, variance])?;
        Ok(Some(smallvec![y, mean, var]))
    }

    /// The gradients of batch normalisation by the statistics of all replicas. Each computes the
    /// sums of `dy` and of `dy * (x - mean)` over its rows, which are all-reduced as one message;
    /// the moments are those of the forward pass. Of all rows
    ///
    /// ```text
    /// dbias  = sum(dy)
    /// dscale = sum(dy * (x - mean)) / deviation
    /// ```
    ///
    /// so that neither needs an exchange of its own.
    pub(super) fn batch_norm_grad(
        &mut self,
        norm: &BatchNormGrad,
        operands: &[Value],
        results: &[ResultInfo],
    ) -> Written {
        let ([x, scale, dy], [dx, dscale, dbias]) = (operands, results) else { return Ok(None) };
        let moments = self.moments(*x)?;
        let op = Op::from(BatchNormSums {});
        let part = self.step(".sums").op(op.clone(), &[*x, *dy, moments])?;
        let sums = self.statistics_of_all(part, &op)?;
        let apply = BatchNormApplyGrad { epsilon: norm.epsilon };
        let value = self.result(dx).op(apply, &[*x, *scale, *dy, moments, sums])?;
        let (given, products) = (self.of_channels(sums, 0)?, self.of_channels(sums, 1)?);
        let variance = self.variance(moments)?;
        let deviation = self.deviation(norm.epsilon, dx, variance)?;
        let by_scale = self.step(".scale").div(products, deviation)?;
        // An empty batch has no deviation; its sums are zeros, which are the gradients.
        let any = self.any(self.elements(*x))?;
        let by_scale = self.step(".scale").choose(any, by_scale, products)?;
        let by_scale = self.result(dscale).convert(by_scale, dscale.ty.dtype)?;
        let by_bias = self.result(dbias).convert(given, dbias.ty.dtype)?;
        Ok(Some(smallvec![value, by_scale, by_bias]))
    }

    /// The moments of a value over all replicas. All normalisations of the value share them, and so
    /// do their gradients.
    fn moments(&mut self, x: Value) -> Result<Value, Failure> {
        let graph = &self.writer.out;
        let users = graph.users(x.node);
        let known = users.iter().find(|(user, _, output)| {
            *output == x.output && matches!(graph.node(*user).op(), Some(Op::BatchMoments(_)))
        });
        let known = known.map(|(user, ..)| Value { node: *user, output: 0 });
        let op = Op::from(BatchMoments {});
        let part = match known {
            Some(known) => known,
            None => self.step(".moments").op(op.clone(), &[x])?,
        };
        match self.writer.redistributed.get(&(part, "all_reduce", 1)) {
            Some(whole) => Ok(*whole),
            None => self.statistics_of_all(part, &op),
        }
    }

    /// The statistics of all rows, all-reduced from those of the rows of each replica.
    fn statistics_of_all(&mut self, part: Value, op: &Op) -> Result<Value, Failure> {
        let refusal = rules::refuse(Code::BatchStatistics, 0, "uses statistics of the whole batch");
        let cause = Cause { refusal: &refusal, op, at: self.at };
        let claim = self.writer.claim(part);
        Ok(self.writer.redistribute(part, claim, Claim::Invariant, cause)?)
    }

    /// One of the numbers that a value has for each channel.
    fn of_channels(&mut self, value: Value, number: i64) -> Result<Value, Failure> {
        let channels = self.writer.out.ty(value).shape[1].clone();
        let (from, to) = (Dim::from(number), Dim::from(number + 1));
        let row = self.step(".row").rows(value, 0, from, to)?;
        self.step(".channels").view(row, vec![channels])
    }

    /// The variance, from moments.
    fn variance(&mut self, moments: Value) -> Result<Value, Failure> {
        let squares = self.of_channels(moments, SQUARES)?;
        let count = self.of_channels(moments, COUNT)?;
        self.step(".variance").div(squares, count)
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
        let new = [new_mean, new_var];
        let elements = Dim::n();
        let running = Running { norm, means: *means, vars: *vars, new, elements };
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
        let any = self.any(running.elements.clone())?;
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

    /// A scalar `f64`, written once for all formulas.
    fn constant(&mut self, value: f64, suffix: &str) -> Result<Value, Failure> {
        if let Some(known) = self.writer.numbers.get(&value.to_bits()) {
            return Ok(*known);
        }
        let new = self.step(suffix).literal(Tensor::scalar(value))?;
        self.writer.numbers.insert(value.to_bits(), new);
        Ok(new)
    }

    /// The elements of a channel of a value; the rows of the batch where they are as many times a
    /// number, so that all values of such sizes share what follows from them.
    fn elements(&self, x: Value) -> Dim {
        let shape = self.writer.out.ty(x).shape.iter().enumerate();
        let all =
            shape.filter(|(axis, _)| *axis != 1).fold(Dim::ONE, |all, (_, d)| all * d.clone());
        let of_row = all.exact_div(&Dim::n()).and_then(|each| each.as_const());
        if of_row.is_some_and(|each| each > 0) { Dim::n() } else { all }
    }

    /// Whether there are any of so many elements, written once for all formulas.
    fn any(&mut self, elements: Dim) -> Result<Value, Failure> {
        if let Some((_, known)) = self.writer.any.iter().find(|(of, _)| *of == elements) {
            return Ok(*known);
        }
        let any = self.step(".any").dim(elements.minimum(&Dim::ONE))?;
        let any = self.step(".rows").convert(any, DType::Bool)?;
        self.writer.any.push((elements, any));
        Ok(any)
    }

    /// A scalar `i64`.
    fn integer(&mut self, value: i64) -> Result<Value, Failure> {
        self.step(".number").literal(Tensor::scalar(value))
    }
}
