use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{
    ContentHash, DevicePlacement, Graph, GraphError, NodeId, NodeKind, Origin, Output, Param,
    ParamId, Placement, ResultInfo, Source, Value, Weights,
};
use crate::op::{Emit, Op, OpError};
use crate::types::invariant::int;
use crate::types::{Device, FastMap, FastSet, Tensor, TensorType};

/// Builds a graph value by value: names stay unique, parameters get their elements.
///
/// ```
/// use fanwise::ir::Builder;
/// use fanwise::op::{MatMul, Unary};
/// use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
///
/// let mut b = Builder::new("net");
/// let batch: Shape = [Dim::n(), 8.into()].into_iter().collect();
/// let x = b.input("x", TensorType::new(DType::F32, batch));
/// let w = b.param("w", Tensor::zeros(DType::F32, &[8, 3]).unwrap());
/// let h = b.op("h", MatMul {}, &[x, w]).unwrap();
/// let y = b.op("y", Unary::Relu, &[h]).unwrap();
/// b.output("y", y);
/// let (graph, weights) = b.finish();
/// assert_eq!(graph.ty(y).to_string(), "f32[N,3]");
/// assert_eq!(weights.len(), 1);
/// ```
pub struct Builder {
    graph: Graph,
    weights: Weights,
    names: FastSet<Arc<str>>,
    /// The next number to try for a name that is taken.
    numbers: FastMap<Arc<str>, u32>,
    params: FastMap<Arc<str>, Value>,
    origin: Origin,
    source: Arc<str>,
}

impl Builder {
    /// A builder of an empty graph.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            graph: Graph::new(name),
            weights: Weights::default(),
            names: FastSet::default(),
            numbers: FastMap::default(),
            params: FastMap::default(),
            origin: Origin::default(),
            source: "".into(),
        }
    }

    /// A builder that goes on with a graph and the elements of its parameters.
    pub fn over(graph: Graph, weights: Weights) -> Self {
        let mut names: FastSet<Arc<str>> = FastSet::default();
        let mut params = FastMap::default();
        for id in graph.ids() {
            let node = graph.node(id);
            names.extend(node.results().iter().map(|r| r.name.clone()));
            if let NodeKind::Param(param) = node.kind() {
                let name = graph.param(*param).name.clone();
                params.insert(name, Value { node: id, output: 0 });
            }
        }
        Self {
            names,
            params,
            weights,
            numbers: FastMap::default(),
            origin: Origin::default(),
            source: "".into(),
            graph,
        }
    }

    /// Sets the file (or `zoo:NAME`) that parameters added from now on come from.
    pub fn set_source(&mut self, file: impl Into<Arc<str>>) {
        self.source = file.into();
    }

    /// Sets the origin of the nodes added from now on.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// The graph as far as it is built.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// A name that no value has yet: `wanted`, or `wanted` with a number.
    pub(crate) fn fresh(&mut self, wanted: &str) -> Arc<str> {
        let mut name: Arc<str> = wanted.into();
        if !self.names.insert(name.clone()) {
            let number = self.numbers.entry(name.clone()).or_insert(0);
            while !self.names.insert(name.clone()) {
                *number += 1;
                name = format!("{wanted}_{number}").into();
            }
        }
        name
    }

    /// Adds an input. Its name must be new; ask `Builder::fresh` where that is not known.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Value {
        self.names.insert(name.into());
        self.graph.add_input(name, ty)
    }

    /// Makes a parameter with these elements of an input.
    #[cfg(feature = "onnx")]
    pub(crate) fn bound(&mut self, input: Value, tensor: Tensor) -> Result<(), GraphError> {
        let name = self.graph.info(input).name.clone();
        let source = Source { file: self.source.clone(), key: name.clone() };
        let param = self.param_from(&name, source, tensor);
        self.graph.replace(input, param)?;
        self.graph.take_input(input);
        Ok(())
    }

    /// Adds a parameter held by the host; a name that was added before gives the same value.
    pub fn param(&mut self, name: &str, tensor: Tensor) -> Value {
        let source = Source { file: self.source.clone(), key: name.into() };
        self.param_from(name, source, tensor)
    }

    /// Adds a parameter that has another source than the builder's.
    pub fn param_from(&mut self, name: &str, source: Source, tensor: Tensor) -> Value {
        let hash = ContentHash::of(&tensor);
        self.param_of(name, source, tensor, hash)
    }

    /// Adds a parameter whose elements have this hash.
    pub(crate) fn param_of(
        &mut self,
        name: &str,
        source: Source,
        tensor: Tensor,
        hash: ContentHash,
    ) -> Value {
        if let Some(value) = self.params.get(name) {
            return *value;
        }
        let name: Arc<str> = name.into();
        let id: ParamId = self.graph.add_param(Param {
            name: name.clone(),
            ty: tensor.tensor_type(),
            source,
            hash,
            placement: Placement::Shared(Device::HOST),
        });
        self.weights.insert(name.clone(), tensor);
        let value = self.graph.add_param_node(id, Device::HOST);
        self.params.insert(name, value);
        value
    }

    /// Adds a parameter that gets its elements later, by its name; one that was added before gives
    /// the same value.
    #[cfg(feature = "keras")]
    pub(crate) fn param_unfilled(&mut self, name: &Arc<str>, ty: TensorType) -> Value {
        if let Some(value) = self.params.get(name) {
            return *value;
        }
        let id: ParamId = self.graph.add_param(Param {
            name: name.clone(),
            ty,
            source: Source { file: self.source.clone(), key: name.clone() },
            hash: ContentHash([0; 8]),
            placement: Placement::Shared(Device::HOST),
        });
        let value = self.graph.add_param_node(id, Device::HOST);
        self.params.insert(name.clone(), value);
        value
    }

    /// Adds an operator with one result.
    pub fn op(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        operands: &[Value],
    ) -> Result<Value, GraphError> {
        let values = self.ops(&[name], op, operands)?;
        Ok(values[0])
    }

    /// Adds an operator with a name for each of its results. Names that are taken get a number.
    pub fn ops(
        &mut self,
        names: &[&str],
        op: impl Into<Op>,
        operands: &[Value],
    ) -> Result<Vec<Value>, GraphError> {
        let names: Vec<Arc<str>> = names.iter().map(|name| self.fresh(name)).collect();
        let node = self.graph.add(
            op.into(),
            operands,
            &names,
            DevicePlacement::HOST,
            self.origin.clone(),
        )?;
        Ok((0u32..).zip(&names).map(|(output, _)| Value { node, output }).collect())
    }

    /// Adds an operator whose results are named after `name`; gives all of them.
    pub fn all(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        operands: &[Value],
    ) -> Result<Vec<Value>, GraphError> {
        let op = op.into();
        let results = self.graph.infer(&op, operands).map_err(|error| GraphError::Op {
            label: self.origin.0.as_deref().unwrap_or(name).to_owned(),
            op: op.name(),
            error: Box::new(error),
        })?;
        let results: SmallVec<[ResultInfo; 1]> = results
            .into_iter()
            .map(|r| ResultInfo { name: self.fresh(name), ty: r.ty, ints: r.ints })
            .collect();
        let count = int::<u32>(results.len());
        let node =
            self.graph.add_typed(op, operands, results, DevicePlacement::HOST, self.origin.clone());
        Ok((0..count).map(|output| Value { node, output }).collect())
    }

    /// What takes in operators whose results are named after `name`.
    pub(crate) fn named<'b>(&'b mut self, name: &'b str) -> Named<'b> {
        Named { builder: self, name }
    }

    /// Makes every user of `old` take `new` instead, and every output that is `old`; the nodes that
    /// give `new` take what they took.
    pub fn replace(&mut self, old: Value, new: Value) -> Result<(), GraphError> {
        let users = self.graph.operands(new.node).contains(&old);
        if users { Err(GraphError::Cycle) } else { self.graph.replace(old, new) }
    }

    /// Makes the parameter that `variable` is the value of hold `new` after a run; false if it is
    /// no parameter.
    pub(crate) fn update(&mut self, variable: Value, new: Value) -> bool {
        let NodeKind::Param(param) = *self.graph.node(variable.node).kind() else { return false };
        self.graph.add_update(param, [new]);
        true
    }

    /// Removes all outputs; their values stay.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        self.graph.take_outputs()
    }

    /// Adds an output.
    pub fn output(&mut self, name: &str, value: Value) {
        self.graph.add_output(name, value);
    }

    /// The graph and the elements of its parameters.
    pub fn finish(self) -> (Graph, Weights) {
        (self.graph, self.weights)
    }
}

/// Takes in operators whose results have one name, or one with a number.
pub(crate) struct Named<'b> {
    builder: &'b mut Builder,
    name: &'b str,
}

impl Emit for Named<'_> {
    type Value = Value;
    type Error = GraphError;

    fn ty(&self, value: Value) -> &TensorType {
        self.builder.graph.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, GraphError> {
        Ok(self.builder.all(self.name, op, operands)?.into())
    }
}

impl Graph {
    /// What takes in an operator whose only result has this name, placed where `node` is and with
    /// its origin.
    pub(crate) fn beside(&mut self, node: NodeId, name: impl Into<Arc<str>>) -> Beside<'_> {
        let (place, origin) = (self.node(node).place(), self.node(node).origin().clone());
        Beside { graph: self, name: name.into(), place, origin }
    }
}

/// Takes in an operator that belongs where another node is.
pub(crate) struct Beside<'g> {
    graph: &'g mut Graph,
    name: Arc<str>,
    place: DevicePlacement,
    origin: Origin,
}

impl Emit for Beside<'_> {
    type Value = Value;
    type Error = GraphError;

    fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, GraphError> {
        let names = std::slice::from_ref(&self.name);
        let node = self.graph.add(op, operands, names, self.place, self.origin.clone())?;
        Ok(smallvec![Value { node, output: 0 }])
    }
}

impl From<OpError> for GraphError {
    fn from(error: OpError) -> Self {
        Self::Op { label: String::new(), op: "constant", error: Box::new(error) }
    }
}
