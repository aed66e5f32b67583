//! What the device can do at most, measured through programs of one kernel and copies of the
//! driver.

use expect::Machine;
use fanwise::backend::cuda::CudaOptions;
use fanwise::ir::{Builder, Graph, Weights};
use fanwise::op::{MatMul, Op, Softmax, Unary};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{Scope, busy, execute, median, spans};
use crate::setup::{executable, inputs, options, replicas, traced};

/// What the device can do at most.
pub(super) struct Ceilings {
    /// Bytes a second that a kernel reads and writes.
    pub(super) copy: f64,
    /// Bytes a second that copies of the driver read and write.
    memory: f64,
    /// Bytes a second to the device.
    upload: f64,
    /// Bytes a second from it.
    download: f64,
    /// Seconds from one small kernel to the next, launched one by one.
    launch: f64,
    /// The same in a graph.
    graph: f64,
    /// Operations a second of a library's matrix products in `f32` and in `bf16`, if measured.
    library: Option<[f64; 2]>,
    /// Operations a second of the backend's own.
    own: f64,
    /// The model of this GPU, if there is one.
    pub(super) machine: Option<&'static Machine>,
}

fn f32s(dims: &[Dim]) -> TensorType {
    TensorType::new(DType::F32, dims.iter().cloned().collect::<Shape>())
}

/// A graph of one input of `width` floats for each row, through operators.
fn chain(width: i64, ops: &[Op]) -> Graph {
    let mut build = Builder::new("chain");
    let mut x = build.input("x", f32s(&[Dim::n(), width.into()]));
    for (i, op) in ops.iter().enumerate() {
        x = build.op(&format!("op_{i}"), op.clone(), &[x]).unwrap();
    }
    build.output("y", x);
    build.finish().0
}

/// The best seconds of a kernel that is all that a graph launches.
fn kernel(graph: &Graph, weights: &Weights, rows: i64) -> f64 {
    let graph = replicas(graph, 1, 1);
    let batch = inputs(&graph, rows, &mut ChaCha8Rng::seed_from_u64(1));
    let (options, trace) = traced(1);
    let run = executable(&graph, weights, options);
    (0..6).for_each(|_| drop(execute(&run, &batch)));
    let lengths = spans(&trace, "compute").into_values().flatten().map(|(_, length)| length);
    1e-6 * lengths.filter(|l| *l > 0.0).fold(f64::INFINITY, f64::min)
}

/// Seconds for each of many small kernels.
fn gap(graphs: bool) -> f64 {
    const KERNELS: u32 = 200;
    let ops: Vec<Op> = (0..KERNELS).map(|_| Softmax::Softmax { axis: -1 }.into()).collect();
    let graph = replicas(&chain(32, &ops), 1, 1);
    let run = executable(&graph, &Weights::default(), CudaOptions { graphs, ..options(1) });
    let batch = inputs(&graph, 1, &mut ChaCha8Rng::seed_from_u64(2));
    let times = (0..12).map(|_| busy(&execute(&run, &batch)) / f64::from(KERNELS));
    median(times.skip(2).collect())
}

/// Operations a second of the product of two square matrices.
fn product(size: usize) -> f64 {
    let rows = i64::try_from(size).unwrap();
    let mut build = Builder::new("product");
    let x = build.input("x", f32s(&[Dim::n(), rows.into()]));
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let data: Vec<f32> = (0..size * size).map(|_| rng.random_range(-1.0..1.0)).collect();
    let w = build.param("w", Tensor::new(&[size, size], &data).unwrap());
    let y = build.op("y", MatMul {}, &[x, w]).unwrap();
    build.output("y", y);
    let (graph, weights) = build.finish();
    2.0 * (size as f64).powi(3) / kernel(&graph, &weights, rows)
}

impl Ceilings {
    pub(super) fn measure(scope: &Scope) -> Self {
        const WIDTH: i64 = 1 << 16;
        /// The most bytes of a copy between the host and the device.
        const LINK: usize = 256 << 20;
        let rows = (scope.bytes / (4 * WIDTH)).max(1);
        let seconds = kernel(&chain(WIDTH, &[Unary::Relu.into()]), &Weights::default(), rows);
        let link = usize::try_from(scope.bytes).unwrap().clamp(1, LINK);
        let devices = fanwise::internal::devices().unwrap_or_else(|e| panic!("{e}"));
        let machine = devices.list.first().and_then(|device| Machine::named(&device.name));
        let rates = fanwise::internal::copy_rates(0, link, 8).unwrap_or_else(|e| panic!("{e}"));
        Self {
            copy: 2.0 * (4 * WIDTH * rows) as f64 / seconds,
            memory: rates.on_device,
            upload: rates.upload,
            download: rates.download,
            launch: gap(false),
            graph: gap(true),
            library: scope.flops,
            own: product(scope.product),
            machine,
        }
    }

    /// Operations a second of which floors in `f32` are made, and whose they are.
    pub(super) fn flops(&self) -> (f64, &'static str) {
        self.library.map_or((self.own, "own GEMM"), |[flops, _]| (flops, "library GEMM"))
    }

    /// Operations a second of which floors in `bf16` are made: those that a library reached here,
    /// or those that the model of this GPU assumes.
    pub(super) fn bf16(&self) -> Option<f64> {
        let measured = self.library.map(|[_, bf16]| bf16);
        measured.or_else(|| self.machine.map(|machine| machine.bf16))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "copy_bytes_per_second": self.copy,
            "memory_bytes_per_second": self.memory,
            "upload_bytes_per_second": self.upload,
            "download_bytes_per_second": self.download,
            "launch_gap_seconds": self.launch,
            "graph_gap_seconds": self.graph,
            "library_flops": self.library.map(|[f32, _]| f32),
            "library_bf16_flops": self.library.map(|[_, bf16]| bf16),
            "bf16_flops": self.bf16(),
            "expected_on": self.machine.map(|machine| machine.name),
            "own_flops": self.own,
            "floors_from": format!("bytes of a kernel that copies, operations of the \
             {}", self.flops().1),
        })
    }
}
