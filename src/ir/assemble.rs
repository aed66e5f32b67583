//! Construction of a graph from the declarations of a file; each declaration is compared with the
//! inferred value.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{DevicePlacement, Graph, GraphError, NodeId, Origin, Param, ParamId, Value};
use crate::op::Op;
use crate::types::invariant::int;
use crate::types::{Device, FastMap, FastSet, Quoted, TensorType};

/// A graph as far as it is put together, and its names.
pub(super) struct Assembly {
    pub(super) graph: Graph,
    /// The inputs and results by name.
    values: FastMap<Arc<str>, Value>,
    params: FastMap<Arc<str>, ParamId>,
    /// The parameters as devices hold them.
    held: FastMap<(ParamId, Device), Value>,
    updated: FastSet<ParamId>,
}

/// A result as the file declares it.
#[derive(Clone, Copy)]
pub(super) struct Declared<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) ty: &'a TensorType,
}

/// A fault in a part of the file.
pub(super) struct AssemblyError {
    pub(super) part: OpPart,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

/// A part of what the file says of an operation.
#[derive(Clone, Copy)]
pub(super) enum OpPart {
    Op,
    Name(usize),
    Type(usize),
}

impl Assembly {
    pub(super) fn new() -> Self {
        Self {
            graph: Graph::new(""),
            values: FastMap::default(),
            params: FastMap::default(),
            held: FastMap::default(),
            updated: FastSet::default(),
        }
    }

    pub(super) fn param(&mut self, param: Param) -> Result<(), String> {
        match self.params.entry(param.name.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(self.graph.add_param(param));
                Ok(())
            }
            Entry::Occupied(entry) => {
                Err(format!("the parameter {} is declared twice", Quoted(entry.key())))
            }
        }
    }

    pub(super) fn input(&mut self, name: Arc<str>, ty: TensorType) -> Result<(), String> {
        let value = self.graph.add_input(name.clone(), ty);
        self.define(name, value)
    }

    fn define(&mut self, name: Arc<str>, value: Value) -> Result<(), String> {
        match self.values.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(())
            }
            Entry::Occupied(entry) => {
                Err(format!("the value {} is defined twice", Quoted(entry.key())))
            }
        }
    }

    /// The input or result with this name.
    pub(super) fn value(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied()
    }

    /// The parameter with this name as `home` holds it, or else as an operator on `user` sees it.
    pub(super) fn held(
        &mut self,
        name: &str,
        home: Option<Device>,
        user: Device,
    ) -> Result<Value, String> {
        let id = self.param_id(name)?;
        let home = home.unwrap_or_else(|| self.graph.param(id).placement.seen_from(user));
        let graph = &mut self.graph;
        Ok(*self.held.entry((id, home)).or_insert_with(|| graph.add_param_node(id, home)))
    }

    /// Adds an operation; its results must have the types that inference gives.
    pub(super) fn op<'a>(
        &mut self,
        op: Op,
        operands: &[Value],
        declared: impl ExactSizeIterator<Item = Declared<'a>> + Clone,
        place: DevicePlacement,
        origin: Origin,
    ) -> Result<NodeId, AssemblyError> {
        let names: SmallVec<[Arc<str>; 1]> = declared.clone().map(|d| d.name.clone()).collect();
        let name = op.name();
        let node = self.graph.add(op, operands, &names, place, origin);
        let node = node.map_err(|e| {
            let message = match e {
                GraphError::Op { error, .. } => format!("`{name}` cannot be applied: {error}"),
                GraphError::ResultCount { .. }
                | GraphError::TypesDiffer { .. }
                | GraphError::Cycle => e.to_string(),
            };
            AssemblyError { part: OpPart::Op, message, help: Some(self.types(operands)) }
        })?;
        for (i, declared) in declared.enumerate() {
            let value = Value { node, output: int::<u32>(i) };
            let ty = self.graph.ty(value);
            if ty != declared.ty {
                let message = format!("{} is {ty}, not {}", Quoted(declared.name), declared.ty);
                let help = Some(self.types(operands));
                return Err(AssemblyError { part: OpPart::Type(i), message, help });
            }
            self.define(declared.name.clone(), value).map_err(|message| AssemblyError {
                part: OpPart::Name(i),
                message,
                help: None,
            })?;
        }
        Ok(node)
    }

    fn types(&self, operands: &[Value]) -> String {
        let types = operands.iter().take(8).map(|v| self.graph.ty(*v).to_string());
        let more = if operands.len() > 8 { ", …" } else { "" };
        format!("the operands are ({}{more})", types.collect::<Vec<_>>().join(", "))
    }

    /// Adds an output; its value must have this type.
    pub(super) fn output(
        &mut self,
        name: Arc<str>,
        ty: &TensorType,
        value: Value,
    ) -> Result<(), String> {
        let found = self.graph.ty(value);
        if found != ty {
            return Err(format!("the output {} is {found}, not {ty}", Quoted(&name)));
        }
        self.graph.add_output(name, value);
        Ok(())
    }

    /// The parameter with this name.
    pub(super) fn param_id(&self, name: &str) -> Result<ParamId, String> {
        let id = self.params.get(name).copied();
        id.ok_or_else(|| format!("there is no parameter {}", Quoted(name)))
    }

    /// The `i`-th device that holds a parameter; the host, where there is no such device.
    pub(super) fn home(&self, param: ParamId, i: usize) -> Device {
        // The verifier refuses an update with more values than homes (V14).
        self.graph.homes(param).get(i).copied().unwrap_or(Device::HOST)
    }

    /// Adds an update; its values must have the parameter's type.
    pub(super) fn update(
        &mut self,
        param: ParamId,
        values: SmallVec<[Value; 1]>,
    ) -> Result<(), String> {
        let Param { name, ty, .. } = self.graph.param(param);
        if !self.updated.insert(param) {
            return Err(format!("the parameter {} is updated twice", Quoted(name)));
        }
        for found in values.iter().map(|v| self.graph.ty(*v)) {
            if found != ty {
                let name = Quoted(name);
                return Err(format!("the parameter {name} is {ty}, its update {found}"));
            }
        }
        self.graph.add_update(param, values);
        Ok(())
    }
}
