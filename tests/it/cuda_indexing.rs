//! A graph of the operators that pick, place, order and scan elements, which no model of the zoo
//! has.

use fanwise::internal::SegmentSum;
use fanwise::ir::{Builder, Graph, Value};
use fanwise::op::{
    Arg, Attr, Gather, GatherAt, Lrn, OneHot, Op, Reduction, Reverse, ReverseSequence, Scan,
    Scatter, Sort, TopK, Transpose, Trilu,
};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};

struct Net {
    builder: Builder,
    outputs: usize,
}

impl Net {
    fn input(&mut self, name: &str, dtype: DType, dims: &[i64]) -> Value {
        let sizes = dims.iter().map(|d| Dim::from(*d));
        let shape: Shape = std::iter::once(Dim::n()).chain(sizes).collect();
        self.builder.input(name, TensorType::new(dtype, shape))
    }

    fn param(&mut self, name: &str, dtype: DType, dims: &[usize]) -> Value {
        self.builder.param(name, Tensor::zeros(dtype, dims).unwrap())
    }

    /// Makes the results of an operator outputs; the first of them.
    fn put(&mut self, op: impl Into<Op>, operands: &[Value], results: usize) -> Value {
        let names: Vec<String> = (0..results).map(|i| format!("y{}", self.outputs + i)).collect();
        self.outputs += results;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = self.builder.ops(&names, op, operands).unwrap_or_else(|e| panic!("{e}"));
        for (name, value) in names.iter().zip(&values) {
            self.builder.output(name, *value);
        }
        values[0]
    }
}

/// The graph, with a kernel of each form.
pub(crate) fn graph() -> Graph {
    let mut net = Net { builder: Builder::new("indexing"), outputs: 0 };
    let x = net.input("x", DType::F32, &[70, 8]);
    let counts = net.input("counts", DType::I64, &[70, 8]);
    let ids = net.input("ids", DType::I64, &[6]);
    picked(&mut net, x, ids);
    placed(&mut net, [x, counts]);
    for x in [x, counts] {
        let last = Arg::Max { axis: 2, keepdims: false, select_last_index: true };
        net.put(last, &[x], 1);
        net.put(Arg::Min { axis: 1, keepdims: true, select_last_index: false }, &[x], 1);
        net.put(TopK { axis: 1, k: 5.into(), largest: true, local: false }, &[x], 2);
        net.put(Sort { axis: -1, descending: false }, &[x], 2);
        net.put(Scan::Sum { axis: 1, exclusive: true, reverse: true }, &[x], 1);
        net.put(Scan::Prod { axis: 2, exclusive: false, reverse: false }, &[x], 1);
    }
    let (rows, step) = (net.input("row", DType::I64, &[]), net.param("step", DType::I64, &[]));
    for name in ["row_uniform", "row_normal"] {
        let noise = Op::read(name, vec![("seed".to_owned(), Attr::Int(1.into()))]).unwrap();
        net.put(noise, &[x, rows, step], 1);
    }
    let image = net.input("image", DType::F32, &[8, 5, 5]);
    for beta in [0.75, 0.5] {
        net.put(Lrn { alpha: 1e-4, beta, bias: 1.0, size: 5 }, &[image], 1);
    }
    net.builder.finish().0
}

fn picked(net: &mut Net, x: Value, ids: Value) {
    let table = net.param("table", DType::F32, &[70, 8]);
    let known = net.param("known", DType::I32, &[3, 2]);
    net.put(Gather { axis: 0 }, &[table, ids], 1);
    net.put(Gather { axis: -1 }, &[x, known], 1);
    let places = net.input("places", DType::I64, &[4, 8]);
    net.put(GatherAt::Elements { axis: 1 }, &[x, places], 1);
    let rows = net.input("rows", DType::I64, &[4, 1]);
    net.put(GatherAt::Nd { batch_dims: 1 }, &[x, rows], 1);
    let flags = net.param("flags", DType::U8, &[2]);
    net.put(OneHot { axis: 1, depth: 10.into() }, &[ids, flags], 1);
    net.put(Trilu { k: -2, upper: false }, &[x], 1);
    net.put(Reverse { axes: vec![1] }, &[x], 1);
    let lengths = net.param("lengths", DType::I64, &[8]);
    net.put(ReverseSequence { batch_axis: 2, time_axis: 1 }, &[x, lengths], 1);
}

fn placed(net: &mut Net, all: [Value; 2]) {
    let at = net.input("at", DType::I64, &[6, 8]);
    let block = net.param("block", DType::I64, &[4, 1]);
    for (i, x) in all.into_iter().enumerate() {
        let dtype = [DType::F32, DType::I64][i];
        let updates = net.input(&format!("updates{i}"), dtype, &[6, 8]);
        for reduction in [Reduction::None, Reduction::Add] {
            net.put(Scatter::Elements { axis: 1, reduction }, &[x, at, updates], 1);
        }
        let back = net.put(Transpose { perm: vec![1, 2, 0] }, &[x], 1);
        let blocks = net.input(&format!("blocks{i}"), dtype, &[4, 8]);
        let blocks = net.put(Transpose { perm: vec![1, 2, 0] }, &[blocks], 1);
        net.put(Scatter::Nd { reduction: Reduction::Max }, &[back, block, blocks], 1);
        let numbers = net.param(&format!("numbers{i}"), DType::I64, &[70]);
        net.put(SegmentSum { segments: 3, wide: false }, &[back, numbers], 1);
    }
}
