//! An operator of another framework: its types are declared, what it does to the batch is assumed,
//! and what it computes is a callback.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::attr::{Attr, AttrValue, written};
use super::infer::{known_sizes, results};
use super::prelude::*;
use crate::types::{Hint, MAX_RANK, ParseValueError, Quoted, QuotedMessage, Setting};

op! {
    /// The foreign operator `op`: results of declared types, by a callback. It must
    /// be a pure function of its operands, the same in every bit at every call.
    ///
    /// Elsewhere: custom call (XLA); custom operator (PyTorch); unregistered operation (MLIR);
    /// custom domain (ONNX); custom layer (Keras).
    pub struct External = "external" is UNREPEATABLE | JUMPS {
        /// The assumption about the batch. The pass relies on it: a wrong assumption gives other
        /// results than one device.
        pub assume: Assume = Assume::None,
        /// Settings of the operator, as its framework writes them; nothing here reads them.
        pub attrs: Option<String>,
        /// The callback, set through the API only; without it the graph can be rewritten and
        /// not run.
        pub call: Callback,
        /// Its name in its framework, such as `com.acme.Gate`.
        pub op: String,
        /// The types of its results, at least one.
        pub results: ResultTypes,
    }
}

impl External {
    /// The operator `op` with results of these types, of which nothing is assumed and which cannot
    /// run yet.
    pub fn new(op: impl Into<String>, results: impl IntoIterator<Item = TensorType>) -> Self {
        Self {
            assume: Assume::None,
            attrs: None,
            call: Callback::default(),
            op: op.into(),
            results: ResultTypes(results.into_iter().collect()),
        }
    }

    /// The same with this assumption.
    #[must_use]
    pub fn assuming(self, assume: Assume) -> Self {
        Self { assume, ..self }
    }

    /// The same, computed by `call`: from the operands in order, all results in order, or what went
    /// wrong, as a sentence. Devices may call it at the same time. A replica gives it its own rows
    /// of the operands.
    #[must_use]
    pub fn calling(
        self,
        call: impl Fn(&[&Tensor]) -> Result<Vec<Tensor>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { call: Callback(Some(Arc::new(call))), ..self }
    }

    fn wrong(&self, reason: impl Into<String>) -> OpError {
        OpError::External { op: self.op.clone(), reason: reason.into() }
    }

    /// Fails unless `found` is what is declared for result `i`.
    fn check(&self, i: usize, declared: &TensorType, found: &Tensor) -> Result<(), OpError> {
        let sizes = known_sizes("the declared sizes", &declared.shape)?;
        if found.dtype() != declared.dtype || found.dims() != sizes.as_slice() {
            let found = found.tensor_type();
            let reason = format!("gave {found} as result {i}, which is declared as {declared}");
            return Err(self.wrong(reason));
        }
        if found.dtype() == DType::Bool && found.bytes().iter().any(|b| *b > 1) {
            return Err(self.wrong(format!("gave a truth value beyond 0 and 1 in result {i}")));
        }
        Ok(())
    }
}

/// Assumption about a foreign operator, written `none` or `rowwise(0)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Assume {
    /// Nothing: the batch may not reach it.
    #[default]
    None,
    /// Every result has on this axis one entry for each row of the batch, and an entry depends on
    /// the operands that carry the batch, on the same axis, only through their entry of the same
    /// row; the other operands are whole.
    Rowwise(usize),
}

impl fmt::Display for Assume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Rowwise(axis) => write!(f, "rowwise({axis})"),
        }
    }
}

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "{} is not an assumption; write rowwise(AXIS), or none",
        Quoted(text)
    ))
}

impl FromStr for Assume {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::None);
        }
        let axis = text.strip_prefix("rowwise(").and_then(|t| t.strip_suffix(')'));
        let axis = axis.filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
        let axis = axis.and_then(|t| t.parse().ok());
        axis.map(Self::Rowwise).ok_or_else(|| wrong(text))
    }
}

written!(Assume = "an assumption, none or rowwise(AXIS)");

/// The types of results, written `f32[N,8], i64[N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultTypes(pub Vec<TensorType>);

impl fmt::Display for ResultTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&types.join(", "))
    }
}

impl AttrValue for ResultTypes {
    const EXPECTED: &'static str = "the types of all results, such as \"f32[N,8], i64[N]\"";

    fn to_attr(&self) -> Option<Attr> {
        Some(Attr::Name(self.to_string()))
    }

    fn from_attr(attr: &Attr) -> Option<Self> {
        let Attr::Name(text) = attr else { return None };
        let mut types = Vec::new();
        // Every type ends with the only bracket of its kind.
        for part in text.split_inclusive(']') {
            let part = if types.is_empty() { part } else { part.trim_start().strip_prefix(',')? };
            types.push(part.parse().ok()?);
        }
        Some(Self(types))
    }

    fn at_rows(&mut self, rows: &Dim) {
        for ty in &mut self.0 {
            *ty = ty.at_rows(rows);
        }
    }
    fn depends_on_batch(&self) -> bool {
        self.0.iter().any(|ty| ty.shape.iter().any(Dim::depends_on_batch))
    }
}

/// Callback of a foreign operator: returns the results from the operands, or an error message.
pub(crate) type Function = dyn Fn(&[&Tensor]) -> Result<Vec<Tensor>, String> + Send + Sync;

/// The callback of a foreign operator. It has no text form: a graph that is read has none.
#[derive(Clone, Default)]
pub struct Callback(pub Option<Arc<Function>>);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a callback" } else { "no callback" })
    }
}

impl AttrValue for Callback {
    const EXPECTED: &'static str =
        "nothing that can be written: a callback is given through the API";

    fn to_attr(&self) -> Option<Attr> {
        None
    }

    fn from_attr(_: &Attr) -> Option<Self> {
        None
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl OpDef for External {
    fn infer(&self, _: &[Operand<'_>]) -> Result<Results, OpError> {
        let wrong = |attr, reason: String| Err(OpError::attr(attr, reason));
        let types = &self.results.0;
        if self.op.is_empty() {
            return wrong("op", "a foreign operator has a name".to_owned());
        }
        if types.is_empty() {
            return wrong("results", "there is no result".to_owned());
        }
        for ty in types {
            if ty.rank() > MAX_RANK {
                return wrong("results", format!("{} axes are more than {MAX_RANK}", ty.rank()));
            }
            if let Some(size) = ty.shape.iter().find(|d| !d.is_nonnegative()) {
                return wrong("results", format!("{size} is not a size for every N"));
            }
        }
        results(types.iter().cloned())
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let Splitting { operands, results } = *at;
        let Some(carries) = operands.iter().position(|x| x.claim != Claim::Invariant) else {
            return at.whole();
        };
        let op = Quoted(&self.op);
        let Assume::Rowwise(axis) = self.assume else {
            let reason =
                format!("has no split rule: what {op} does to the rows of the batch is not known");
            let advice = "if the operator treats rows independently, assume so";
            let hint = Hint::set(Setting::Assume, [format!("{}=rowwise(AXIS)", self.op)], advice);
            let refusal = rules::refuse(Code::NoRule, carries, reason);
            return Err(Refusal { hint: Some(Box::new(hint)), ..refusal });
        };
        let other =
            |x: &SplitOperand<'_>| x.claim != Claim::Invariant && x.claim != Claim::rows(axis);
        if let Some((i, x)) = operands.iter().enumerate().find(|(_, x)| other(x)) {
            let reason = format!(
                "takes {} split as {}, where {op} is assumed to keep the rows of axis {axis} apart",
                x.ty, x.claim
            );
            return at.refuse_at(i, Code::Misaligned, reason);
        }
        let whole = |x: &&SplitOperand<'_>| {
            x.claim == Claim::Invariant && x.ty.shape.iter().any(Dim::depends_on_batch)
        };
        if let Some(x) = operands.iter().find(whole) {
            let reason = format!("meets {}, which every replica holds for the whole batch", x.ty);
            return at.refuse_at(carries, Code::GlobalIndex, reason);
        }
        let by_row = |ty: &TensorType| {
            let mut sizes = ty.shape.iter().enumerate();
            ty.shape.get(axis) == Some(&Dim::n())
                && sizes.all(|(i, d)| i == axis || !d.depends_on_batch())
        };
        if let Some(ty) = results.iter().find(|ty| !by_row(ty)) {
            let reason = format!(
                "gives {ty}, where {op} is assumed to give one entry of axis {axis} for each row"
            );
            return at.refuse_at(carries, Code::BakedBatch, reason);
        }
        at.give(Claim::rows(axis))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let Some(call) = &self.call.0 else {
            return Err(self.wrong(
                "has no callback; it can be rewritten, and run where the API gives it one",
            ));
        };
        let found =
            call(operands).map_err(|e| self.wrong(format!("failed: {}", QuotedMessage(&e))))?;
        let declared = &self.results.0;
        if found.len() != declared.len() {
            let (found, declared) = (found.len(), declared.len());
            return Err(self.wrong(format!("gave {found} results where {declared} are declared")));
        }
        for (i, (ty, tensor)) in declared.iter().zip(&found).enumerate() {
            self.check(i, ty, tensor)?;
        }
        Ok(found)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("only its values are known")
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, refusal, rng};
    use super::super::{AttrError, Op, OpDef, OpError, OpText, SplitOperand};
    use super::{Assume, External};
    use crate::types::{Claim, Combine, DType, Shard, Tensor, TensorType};

    fn types(texts: &[&str]) -> Vec<TensorType> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    /// Sums over the last axis of the first operand, each times the last element of the second.
    fn weighed(operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        let [x, w] = operands else { return Err("two operands".to_owned()) };
        let [rows, width] = *x.dims() else { return Err("two axes".to_owned()) };
        let weight = w.as_slice::<f32>().last().copied().ok_or("no weight")?;
        let sum = |i: usize| -> f32 { x.as_slice::<f32>()[i * width..][..width].iter().sum() };
        let sums: Vec<f32> = (0..rows).map(|i| sum(i) * weight).collect();
        let copy = Tensor::new(&[rows, 1], &sums).map_err(|e| e.to_string())?;
        Ok(vec![Tensor::new(&[rows], &sums).map_err(|e| e.to_string())?, copy])
    }

    fn gate(results: &[&str]) -> External {
        External::new("com.acme.Gate", types(results))
    }

    #[test]
    fn rows_pass_as_assumed() {
        let mut rng = rng(1);
        for _ in 0..40 {
            let n = rng.random_range(0..7);
            let (x, w) =
                (random(&mut rng, DType::F32, &[n, 3]), random(&mut rng, DType::F32, &[2]));
            let op = gate(&["f32[N]", "f32[N,1]"]).calling(weighed);
            let operands = [(&x, Claim::rows(0)), (&w, Claim::Invariant)];
            let row = op.clone().assuming(Assume::Rowwise(0));
            let split = check_split(&row.clone().into(), &operands, n);
            assert_eq!(split, Ok(vec![Claim::rows(0); 2]));
            assert_eq!(refusal(&op.into(), &operands), "R0199");
            let mut fixed = row;
            fixed.at_rows(&i64::try_from(n).unwrap().into());
            assert_eq!(testing::eval(&fixed.into(), &[&x, &w]), weighed(&[&x, &w]).unwrap());
        }
    }

    /// For each entry of `axis`, the sum of all its elements of every operand whose size there is
    /// that of the first; `shift` entries later.
    fn sums(axis: usize, shift: usize, operands: &[&Tensor]) -> Tensor {
        let rows = operands[0].dims()[axis];
        let mut sums = vec![0.0f32; rows];
        for x in operands.iter().filter(|x| x.dims()[axis] == rows) {
            let inner: usize = x.dims()[axis + 1..].iter().product();
            for (i, v) in x.as_slice::<f32>().iter().enumerate() {
                sums[(i / inner % rows + shift) % rows] += *v;
            }
        }
        let mut dims = vec![1; axis];
        dims.push(rows);
        Tensor::new(&dims, &sums).unwrap()
    }

    /// The rule of `sums` on random operands of random rank, the last of which is whole.
    fn split_sums(seed: u64, shift: usize) {
        let mut rng = rng(seed);
        for _ in 0..60 {
            let (rank, n) = (rng.random_range(1..4), rng.random_range(0..8));
            let axis = rng.random_range(0..rank);
            let mut shape = |rows| -> Vec<usize> {
                let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
                dims[axis] = rows;
                dims
            };
            let shapes = [shape(n), shape(n), shape(1)];
            let [a, b, whole] = shapes.map(|dims| random(&mut rng, DType::F32, &dims));
            let ty = format!("f32[{}N]", "1,".repeat(axis));
            let op = gate(&[&ty]).assuming(Assume::Rowwise(axis)).calling(move |operands| {
                Ok(vec![sums(axis, shift, operands.split_last().ok_or("no operand")?.1)])
            });
            let rows = Claim::rows(axis);
            let operands = [(&a, rows), (&b, rows), (&whole, Claim::Invariant)];
            assert_eq!(check_split(&op.into(), &operands, n), Ok(vec![rows]));
        }
    }

    #[test]
    fn rows_pass_on_any_axis() {
        split_sums(2, 0);
    }

    #[test]
    #[should_panic(expected = "rows")]
    fn a_wrong_assumption_is_seen_by_execution() {
        split_sums(3, 1);
    }

    #[test]
    fn what_is_not_assumed_is_refused() {
        let x = Tensor::zeros(DType::F32, &[4, 4]).unwrap();
        let op = |results: &[&str], axis| Op::from(gate(results).assuming(Assume::Rowwise(axis)));
        let split = |op: &Op, claim| check_split(op, &[(&x, claim)], 4).unwrap_err();
        assert_eq!(split(&op(&["f32[N,3]"], 0), Claim::rows(1)), "R0101");
        let folded = Claim::Shard(Shard { axis: 0, outer: 1, inner: 2 });
        assert_eq!(split(&op(&["f32[N,3]"], 0), folded), "R0101");
        let blocks = Claim::Shard(Shard { axis: 0, outer: 2, inner: 1 });
        assert_eq!(split(&op(&["f32[N,3]"], 0), blocks), "R0108");
        for results in ["f32[3,N]", "f32[2*N]", "f32[4]", "f32[]", "f32[N,N]"] {
            assert_eq!(split(&op(&[results], 0), Claim::rows(0)), "R0110", "{results}");
            assert_eq!(split(&op(&["f32[N]", results], 0), Claim::rows(0)), "R0110", "{results}");
        }
        let whole = |results: &[&str]| {
            let types = types(results);
            let x = SplitOperand { claim: Claim::Invariant, ty: &types[0] };
            Op::from(gate(results)).split(&[x], &types).map_err(|r| r.code.name())
        };
        assert_eq!(whole(&["f32[4]", "i64[]"]).unwrap().to_vec(), [Claim::Invariant; 2]);
        // Every replica computes all of it.
        assert_eq!(whole(&["f32[4]", "f32[N]"]).unwrap().to_vec(), [Claim::Invariant; 2]);
        // What the assumption says of rows does not hold where one operand has those of the whole
        // batch.
        for other in ["f32[N]", "f32[3,2*N]"] {
            let types = types(&["f32[N]", other]);
            let operands = [Claim::rows(0), Claim::Invariant].into_iter().zip(&types);
            let operands: Vec<_> = operands.map(|(claim, ty)| SplitOperand { claim, ty }).collect();
            let op = Op::from(gate(&["f32[N]"]).assuming(Assume::Rowwise(0)));
            let split = op.split(&operands, &types[..1]);
            assert_eq!(split.unwrap_err().code.name(), "R0106", "{other}");
        }
        let part = SplitOperand { claim: Claim::Partial(Combine::Sum), ty: &types(&["f32[4]"])[0] };
        let split = Op::from(gate(&["f32[4]"])).split(&[part], &types(&["f32[4]"]));
        assert_eq!(split.unwrap_err().code.name(), "R0111");
    }

    #[test]
    fn what_a_callback_gives_is_compared_with_the_declared_types() {
        let x = Tensor::zeros(DType::F32, &[2]).unwrap();
        let eval = |op: External| op.eval(&[&x]).unwrap_err().to_string();
        let gives = |results: &[&str], given: Vec<Tensor>| {
            eval(gate(results).calling(move |_| Ok(given.clone())))
        };
        let of = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims).unwrap();
        let text = gives(&["f32[2]"], vec![]);
        assert!(text.contains("`com.acme.Gate` gave 0 results where 1 are declared"), "{text}");
        let text = gives(&["f32[2]"], vec![of(DType::F64, &[2])]);
        assert!(text.contains("gave f64[2] as result 0, which is declared as f32[2]"), "{text}");
        let text = gives(&["f32[2]", "i64[]"], vec![x.clone(), of(DType::I64, &[1])]);
        assert!(text.contains("gave i64[1] as result 1, which is declared as i64[]"), "{text}");
        let truth = Tensor::new(&[1], &[2u8]).unwrap().reinterpreted(DType::Bool);
        assert!(gives(&["bool[1]"], vec![truth]).contains("beyond 0 and 1 in result 0"));
        assert!(gives(&["f32[N]"], vec![x.clone()]).contains("must be known before the run"));
        let text = eval(gate(&["f32[2]"]).calling(|_| Err("no\u{1b}licence".to_owned())));
        assert!(text.contains("`com.acme.Gate` failed: no\\u{1b}licence"), "{text}");
        assert!(eval(gate(&["f32[2]"])).contains("`com.acme.Gate` has no callback"));
    }

    #[test]
    fn declarations_are_checked() {
        let infer = |op: External| op.infer(&[]);
        let inferred = infer(gate(&["f32[N,8]", "i64[]"])).unwrap();
        assert_eq!(inferred[1].ty.to_string(), "i64[]");
        assert!(infer(External::new("", types(&["f32[]"]))).is_err());
        assert!(infer(gate(&[])).is_err());
        for ty in ["f32[N-1]", "f32[-1]", "f32[281474976710657]"] {
            assert!(infer(gate(&[ty])).is_err(), "{ty}");
        }
        let deep = TensorType::new(DType::F32, vec![1usize; 65].as_slice());
        let deep = infer(External::new("x", [deep]));
        assert!(matches!(deep, Err(OpError::Attribute { attr: "results", .. })), "{deep:?}");
    }

    #[test]
    fn it_reads_back_without_its_callback() {
        let mut op = gate(&["f32[N,min(8,N)]", "i64[]"]).assuming(Assume::Rowwise(1));
        op.attrs = Some("alpha=0.5".to_owned());
        let attrs = |op: &External| -> Vec<(String, super::Attr)> {
            op.attrs().into_iter().map(|(n, a)| (n.to_owned(), a)).collect()
        };
        let read = Op::read("external", attrs(&op)).unwrap();
        assert_eq!(read, op.clone().calling(|_| Ok(Vec::new())).into());
        let texts: Vec<String> = op.attrs().iter().map(|(n, a)| format!("{n}={a}")).collect();
        let results = "results=\"f32[N,min(8,N)], i64[]\"";
        assert_eq!(
            texts,
            ["assume=\"rowwise(1)\"", "attrs=\"alpha=0.5\"", "op=\"com.acme.Gate\"", results]
        );
        op.at_rows(&3.into());
        assert_eq!(op.results.to_string(), "f32[3,3], i64[]");
        let wrong = |name: &str, text: &str| {
            let mut attrs = attrs(&op);
            attrs.retain(|(n, _)| n != name);
            attrs.push((name.to_owned(), super::Attr::Name(text.to_owned())));
            assert!(matches!(Op::read("external", attrs), Err(AttrError::Kind { .. })), "{text}");
        };
        for text in ["f32", "f32[N", "f32[N]i64[]", "f32[N],", "f32[N], ", "x[N]", "f32[N,]", ","] {
            wrong("results", text);
        }
        for text in ["", "rowwise", "rowwise()", "rowwise(+1)", "rowwise(-1)", "rowwise(0) "] {
            wrong("assume", text);
        }
        wrong("call", "main");
    }
}
