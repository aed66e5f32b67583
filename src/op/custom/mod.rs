//! Operators that a framework brings along: their attributes have types, and they know their
//! results, their split rule, their kernel and their gradient.

mod check;
mod gradient;
mod registry;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use gradient::GradientBuilder;
pub use registry::CustomOps;

use super::attr::{Attr, AttrError, AttrReader};
use super::declare::by_name;
use super::infer::results;
use super::prelude::*;
use super::{OpRead, OpText};
use crate::types::{MAX_RANK, QuotedMessage, is_bare};

/// An operator of a framework, which brings along all that fanwise knows of its own ones.
///
/// It must be a pure function of its operands and its attributes, the same in every bit at every
/// call: equal names and attributes mean equal operators, devices run it at the same time, each on
/// its own rows, and simplification may compute it before the run. Its rules must say the same of
/// the same operands whenever they are asked. What it gives is checked; an error, a wrong type or a
/// panic of it is an error that names it.
///
/// Elsewhere: custom call (XLA); `torch.library` (PyTorch); dialect operation (MLIR); custom domain
/// (ONNX); custom layer (Keras).
pub trait CustomOp: Any + Send + Sync {
    /// Its name in the text form: words with a dot between them, such as `com.acme.Gate`.
    fn name(&self) -> &'static str;

    /// Its attributes by name. None of them may depend on the batch: what does follows from the
    /// sizes of the operands.
    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    /// The types of its results, at least one, or why it does not take operands of these types, as
    /// a sentence.
    ///
    /// Sizes may be formulas of `N`: the whole batch has `f32[N,8]`, a replica `f32[N/2,8]`, a run
    /// `f32[3,8]`.
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// The split rule: what replicas have of the results, given what they have of the operands, or
    /// why they would need the rows of others, as a sentence. Asked where at least one operand is
    /// split, and none is partial.
    ///
    /// It is relied on: a wrong rule gives other results than one device.
    /// [`Custom::check_split`] executes it.
    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String>;

    /// The split rule where an operand is partial: parts of the results, if the operator gives them
    /// when it is applied to the parts that the replicas have. By default there are none, and the
    /// parts are combined before.
    fn partial(&self, _operands: &[Sharding]) -> Option<Vec<Sharding>> {
        None
    }

    /// The kernel: all results in order, with the types that [`infer`](Self::infer) gives for the
    /// types of these operands, or what went wrong, as a sentence.
    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String>;

    /// The gradient of each operand, in order and with its type, as a formula of the operands, the
    /// results and their gradients; `None` where it is 0 or is not wanted.
    ///
    /// It may use operators of the framework, too: `at.op(GateGrad, &[x, dy])`. By default there is
    /// none.
    fn backward(&self, _at: &mut GradientBuilder<'_, '_>) -> Result<Vec<Option<Term>>, RuleError> {
        Err(RuleError::Undefined("the operator declares none"))
    }
}

/// The part of a value that a replica has, as the split rule of a [`CustomOp`] states it.
///
/// Elsewhere: sharding (XLA); placement (PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// The whole value.
    Whole,
    /// The entries of an axis that belong to its rows, in their order.
    Rows {
        /// The axis.
        axis: usize,
    },
    /// A value of the same type as the whole; those of all replicas combine to the whole.
    Partial(Combine),
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Rows { axis } => write!(f, "rows of axis {axis}"),
            Self::Partial(by) => write!(f, "parts ({})", by.name()),
        }
    }
}

/// A [`CustomOp`] in a graph. Two are equal where their names and attributes are.
#[derive(Clone)]
pub struct Custom {
    op: Arc<dyn CustomOp>,
    name: &'static str,
    attrs: Arc<[(&'static str, Attr)]>,
}

impl Custom {
    /// This operator.
    pub fn new(op: impl CustomOp) -> Self {
        Self::from(Arc::new(op) as Arc<dyn CustomOp>)
    }

    /// The framework's own type, if it is this one.
    pub fn get<T: CustomOp>(&self) -> Option<&T> {
        let op: &dyn Any = &*self.op;
        op.downcast_ref()
    }

    fn wrong(&self, reason: impl Into<String>) -> OpError {
        OpError::External { op: self.name.to_owned(), reason: reason.into() }
    }

    /// Fails unless its name and attributes can be written and read.
    fn check_text(&self) -> Result<(), OpError> {
        if !(is_bare(self.name) && self.name.contains('.')) {
            return Err(self.wrong("is not named with a dot between words, as `com.acme.Gate` is"));
        }
        for (name, attr) in self.attrs.iter() {
            if !is_bare(name) {
                return Err(
                    self.wrong(format!("has an attribute whose name {name:?} is not a word"))
                );
            }
            let depends = match attr {
                Attr::Int(d) => d.as_const().is_none(),
                Attr::Ints(dims) => dims.iter().any(|d| d.as_const().is_none()),
                Attr::Bool(_)
                | Attr::Float(_)
                | Attr::Floats(_)
                | Attr::Name(_)
                | Attr::Tensor(_) => false,
            };
            if depends {
                return Err(self.wrong(format!("has an attribute `{name}` that is not a constant")));
            }
        }
        match self.attrs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(self.wrong(format!("has two attributes `{}`", pair[0].0))),
            None => Ok(()),
        }
    }

    /// The types of the results on operands of these types.
    fn types(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let types = guarded(|| self.op.infer(operands)).map_err(|e| {
            self.wrong(format!("does not take its operands: {}", QuotedMessage(&e)))
        })?;
        if types.is_empty() {
            return Err(self.wrong("has no results"));
        }
        let possible =
            |ty: &TensorType| ty.rank() <= MAX_RANK && ty.shape.iter().all(Dim::is_nonnegative);
        match types.iter().find(|ty| !possible(ty)) {
            Some(ty) => Err(OpError::ResultSize(ty.clone())),
            None => Ok(types),
        }
    }

    /// Fails unless `found` is what inference says of result `i`.
    fn check(&self, i: usize, declared: &TensorType, found: &Tensor) -> Result<(), OpError> {
        let ty = found.tensor_type();
        if ty != *declared {
            return Err(self.wrong(format!("gave {ty} as result {i}, which must be {declared}")));
        }
        if ty.dtype == DType::Bool && found.bytes().iter().any(|b| *b > 1) {
            return Err(self.wrong(format!("gave a truth value beyond 0 and 1 in result {i}")));
        }
        Ok(())
    }
}

impl From<Arc<dyn CustomOp>> for Custom {
    fn from(op: Arc<dyn CustomOp>) -> Self {
        let attrs = by_name(op.attrs().into_iter().map(Some));
        Self { name: op.name(), attrs: attrs.into(), op }
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.attrs)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.attrs == other.attrs
    }
}

/// Result of a framework's code; a panic becomes an ordinary error.
fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}

/// The claims of results for which the framework's `rule` is asked.
fn claims(
    at: &Splitting<'_>,
    rule: impl FnOnce(&[Sharding]) -> Result<Option<Vec<Sharding>>, String>,
) -> Result<Claims, Refusal> {
    let Splitting { operands, results } = *at;
    let carries = operands.iter().position(|x| x.claim != Claim::Invariant).unwrap_or(0);
    let refuse = |reason: String| at.refuse_at(carries, Code::NoRule, reason);
    let given: Vec<Sharding> = operands.iter().map(|x| sharding(x.claim)).collect();
    let entries = |x: &SplitOperand<'_>| x.claim.shard().map(|s| s.inner);
    let mut split = operands.iter().filter_map(entries);
    if let Some(first) = split.next().filter(|first| split.any(|other| other != *first)) {
        let other = |x: &SplitOperand<'_>| entries(x).is_some_and(|e| e != first);
        let i = operands.iter().position(other).unwrap_or(carries);
        let reason = "meets values that have different numbers of entries for each row";
        return at.refuse_at(i, Code::Misaligned, reason);
    }
    let found = match guarded(|| Ok(rule(&given))) {
        Ok(Ok(Some(found))) => found,
        Ok(Ok(None)) => return at.needs_whole(),
        // It takes the operands whole, for which it needs no rule.
        Ok(Err(e)) => {
            let reason = format!("has no split rule for this: {}", QuotedMessage(&e));
            return at.refuse_at(carries, Code::AcrossSamples, reason);
        }
        Err(e) => return refuse(format!("has no split rule: {}", QuotedMessage(&e))),
    };
    if found.len() != results.len() {
        let (found, results) = (found.len(), results.len());
        return refuse(format!("has a split rule for {found} results, and {results} results"));
    }
    let claims = found.iter().zip(results).map(|(found, ty)| claim(*found, ty, carries));
    claims.collect()
}

/// A claim as a framework's rule sees it. Those that it cannot say do not come to it.
fn sharding(claim: Claim) -> Sharding {
    match claim {
        Claim::Shard(Shard { axis, .. }) => Sharding::Rows { axis },
        Claim::Partial(by) => Sharding::Partial(by),
        Claim::Invariant | Claim::Own | Claim::Mixed => Sharding::Whole,
    }
}

/// The claim of a result of this type, where an operand, `carries`, is split or partial.
fn claim(found: Sharding, ty: &TensorType, carries: usize) -> Result<Claim, Refusal> {
    let refuse = |code, reason: String| Err(rules::refuse(code, carries, reason));
    let Sharding::Rows { axis } = found else {
        if ty.shape.iter().any(Dim::depends_on_batch) {
            let reason = format!("gives {ty} as {found}, though its size depends on the batch");
            return refuse(Code::BakedBatch, reason);
        }
        let Sharding::Partial(by) = found else { return Ok(Claim::Invariant) };
        let fits = match by {
            Combine::Max | Combine::Min => true,
            Combine::Sum | Combine::Prod => ty.dtype != DType::Bool,
            Combine::Lse | Combine::L2 | Combine::Mean => ty.dtype.is_float(),
            Combine::WideSum | Combine::WideProd | Combine::Moments => false,
        };
        if !fits {
            return refuse(Code::NoRule, format!("gives {found} of {ty}, which do not combine"));
        }
        return Ok(Claim::Partial(by));
    };
    match rules::batch_axis(ty, carries)? {
        Some(shard) if shard.axis == axis => Ok(Claim::Shard(shard)),
        _ if axis >= ty.rank() => {
            refuse(Code::NoRule, format!("gives {found} of {ty}, which has no such axis"))
        }
        _ => {
            let reason = format!("gives {found} of {ty}, which has no entry there for each row");
            refuse(Code::BakedBatch, reason)
        }
    }
}

impl OpText for Custom {
    fn name(&self) -> &'static str {
        self.name
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.attrs.to_vec()
    }

    // A callback may do anything.
    fn facts(&self) -> Traits {
        Traits::NONE
    }

    // No attribute depends on the batch.
    fn at_rows(&mut self, _: &Dim) {}

    fn depends_on_batch(&self) -> bool {
        false
    }
}

impl OpRead for Custom {
    // Its names are those of a registry.
    const NAMES: &'static [&'static str] = &[];

    fn read(name: &'static str, _: &mut AttrReader) -> Result<Self, AttrError> {
        Err(AttrError::UnknownOp(name.to_owned()))
    }
}

impl OpDef for Custom {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.check_text()?;
        let types: Vec<TensorType> = operands.iter().map(|x| x.ty.clone()).collect();
        results(self.types(&types)?)
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        // The same function of the same values.
        if at.operands.iter().all(|x| x.claim == Claim::Invariant) {
            return at.whole();
        }
        claims(at, |given| self.op.split(given).map(Some))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        claims(at, |given| Ok(self.op.partial(given)))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let types: Vec<TensorType> = operands.iter().map(|x| x.tensor_type()).collect();
        let declared = self.types(&types)?;
        let found = guarded(|| self.op.eval(operands))
            .map_err(|e| self.wrong(format!("failed: {}", QuotedMessage(&e))))?;
        if found.len() != declared.len() {
            let (found, declared) = (found.len(), declared.len());
            return Err(self.wrong(format!("gave {found} results, not {declared}")));
        }
        for (i, (ty, tensor)) in declared.iter().zip(&found).enumerate() {
            self.check(i, ty, tensor)?;
        }
        Ok(found)
    }

    // Nothing is known of what it computes.
    fn jumps(&self) -> bool {
        true
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let wrong = |reason: String| RuleError::from(self.wrong(reason));
        // Terms of other rules are found out when their types are asked for.
        let given = guarded(|| {
            let given = self.op.backward(&mut GradientBuilder(at));
            let typed = |term: Term| (term, at.ty(term).clone());
            Ok(given.map(|given| given.into_iter().map(|term| term.map(typed)).collect::<Vec<_>>()))
        });
        let given =
            given.map_err(|e| wrong(format!("has no gradient: {}", QuotedMessage(&e))))??;
        if given.len() != at.operands() {
            let (given, operands) = (given.len(), at.operands());
            return Err(wrong(format!("gave {given} gradients for {operands} operands")));
        }
        for (i, given) in given.into_iter().enumerate() {
            let Some((term, found)) = given else { continue };
            let wanted = at.ty(at.operand(i)?);
            if found != *wanted {
                let reason = format!("gave {found} as the gradient of operand {i}, {wanted}");
                return Err(wrong(reason));
            }
            at.give(i, term)?;
        }
        Ok(())
    }
}
