use std::borrow::Cow;

use serde::Serialize;

use super::super::{Graph, NodeKind, Param, Placement, Update, Value};
use super::attr::Attrs;
use super::form::{
    FORMAT, NodeForm, OperandForm, OutputForm, ParamForm, SplitForm, UpdateForm, VERSION, ValueForm,
};
use super::value::{Text, sizes};

/// The machine form of a graph. One element of each list stands on a line of its own.
pub fn to_json(graph: &Graph) -> String {
    let mut out = String::with_capacity(256 * graph.len());
    out.push_str("{\n\"format\": ");
    push(&mut out, &FORMAT);
    out.push_str(",\n\"version\": ");
    push(&mut out, &VERSION);
    out.push_str(",\n\"name\": ");
    push(&mut out, &graph.name());
    if let Some(split) = graph.split() {
        let devices = split.devices().iter().copied().map(Text).collect();
        let rule = Text(split.rule().clone());
        out.push_str(",\n\"split\": ");
        push(&mut out, &SplitForm { devices, rule, offsets: sizes(split.offsets()) });
    }
    let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
    list(&mut out, "params", graph.params().iter().map(param));
    list(
        &mut out,
        "inputs",
        graph.inputs().map(|v| graph.info(v)).map(|info| ValueForm::new(&info.name, &info.ty)),
    );
    list(&mut out, "nodes", order.iter().filter_map(|id| node(graph, *id)));
    if !graph.updates().is_empty() {
        let update = |update: &Update| UpdateForm {
            param: Cow::Owned(graph.param(update.param).name.to_string()),
            values: update.values.iter().map(|value| operand(graph, *value)).collect(),
        };
        list(&mut out, "updates", graph.updates().iter().map(update));
    }
    let output = |o: &'_ super::super::Output| OutputForm {
        name: Cow::Owned(o.name.to_string()),
        value: operand(graph, o.value),
    };
    list(&mut out, "outputs", graph.outputs().iter().map(output));
    out.push_str("\n}\n");
    out
}

fn push(out: &mut String, value: &impl Serialize) {
    // The forms have string keys and infallible fields, so serialisation cannot fail.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}

fn list<T: Serialize>(out: &mut String, name: &str, items: impl Iterator<Item = T>) {
    out.push_str(",\n");
    push(out, &name);
    out.push_str(": [");
    for (i, item) in items.enumerate() {
        out.push_str(if i > 0 { ",\n" } else { "\n" });
        push(out, &item);
    }
    out.push_str("\n]");
}

fn param(param: &Param) -> ParamForm<'_> {
    ParamForm {
        name: (&*param.name).into(),
        dtype: Text(param.ty.dtype),
        shape: sizes(&param.ty.shape),
        file: (&*param.source.file).into(),
        key: (&*param.source.key).into(),
        blake3: param.hash.to_string().into(),
        device: match param.placement {
            Placement::Shared(device) => Some(Text(device)),
            Placement::Mirrored => None,
        },
    }
}

fn node(graph: &Graph, id: super::super::NodeId) -> Option<NodeForm<'_>> {
    let node = graph.node(id);
    let op = node.op()?;
    let attrs = op.attrs().into_iter().map(|(name, attr)| (name.to_owned(), attr)).collect();
    let first = node.results().first().map(|r| &*r.name);
    Some(NodeForm {
        op: op.name().into(),
        operands: graph.operands(id).into_iter().map(|v| operand(graph, v)).collect(),
        attrs: Attrs(attrs),
        results: node.results().iter().map(|r| ValueForm::new(&r.name, &r.ty)).collect(),
        device: Text(node.place().device),
        replica: node.place().replica,
        origin: Some(node.label()).filter(|label| Some(*label) != first).map(Into::into),
    })
}

fn operand(graph: &Graph, value: Value) -> OperandForm<'_> {
    let name = graph.get(value).map(|info| Cow::Borrowed(&*info.name));
    match name.as_ref().map(|_| graph.node(value.node)) {
        Some(node) if matches!(node.kind(), NodeKind::Param(_)) => {
            OperandForm { value: None, param: name, device: Some(Text(node.place().device)) }
        }
        _ => OperandForm { value: name, param: None, device: None },
    }
}
