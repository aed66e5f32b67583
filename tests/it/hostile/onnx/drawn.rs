//! Files of branches and loops inside each other that are drawn at random: trips without end,
//! results that are stacked by the hundred, initializers of every size.

use prost::Message;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::proto::tensor_proto::DataType;
use support::proto::{GraphProto, NodeProto, TensorProto};

use super::control::{inner, truth, whole};
use super::models::{
    body, graph, int, ints, model, node, raw, tensor_attribute, value, vector, with,
};
use crate::it::hostile::{Case, table};

/// The files of a run.
const FILES: u64 = 40;

/// The memory of what a file may unroll to, and of what it may declare.
const MEMORY: u64 = 512 << 20;

/// A file while it is drawn.
struct Draw {
    rng: ChaCha8Rng,
    /// The number of the next value.
    next: usize,
    /// The nodes that may still be added.
    left: usize,
    known: Vec<TensorProto>,
}

/// The values that a node may take: rows of 4 numbers, and integers.
#[derive(Clone)]
struct Scope {
    rows: Vec<String>,
    counts: Vec<String>,
}

impl Draw {
    fn name(&mut self) -> String {
        self.next += 1;
        format!("v{}", self.next)
    }

    fn of<T: Clone>(&mut self, from: &[T]) -> T {
        from.choose(&mut self.rng).expect("one of some").clone()
    }

    /// A number that is often small and at times far too large.
    fn count(&mut self, most: i64) -> i64 {
        let top = self.of(&[1, 2, 5, 40, 1000, most]);
        self.rng.random_range(0..=top)
    }

    fn size(&mut self, most: i64) -> usize {
        usize::try_from(self.count(most)).expect("a size")
    }

    /// A tensor of zeros, beside those of the file.
    fn zeros(&mut self, name: &str) -> TensorProto {
        let rows = self.count(1 << 14);
        let bytes = vec![0; usize::try_from(16 * rows).expect("a size")];
        raw(name, DataType::Float, &[rows, 4], &bytes)
    }

    /// Nodes that take values of `scope` and add to it.
    fn nodes(&mut self, scope: &mut Scope, depth: usize) -> Vec<NodeProto> {
        let mut nodes = Vec::new();
        for _ in 0..self.rng.random_range(0..5) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let made = match self.rng.random_range(0..10) {
                0..2 if depth > 0 => self.branch(scope, depth - 1),
                2..5 if depth > 0 => self.repeat(scope, depth - 1),
                5 if depth > 0 => self.scan(scope, depth - 1),
                _ => self.plain(scope),
            };
            nodes.push(made);
        }
        nodes
    }

    fn plain(&mut self, scope: &mut Scope) -> NodeProto {
        let (a, b, to) = (self.of(&scope.rows), self.of(&scope.rows), self.name());
        let made = match self.rng.random_range(0..8) {
            0 => with(node("Concat", &[&a, &b], &[&to]), int("axis", self.rng.random_range(0..2))),
            1 => with(node("Concat", &vec![&*a; self.size(500) + 1], &[&to]), int("axis", 1)),
            2 => {
                let large = self.zeros("");
                with(node("Constant", &[], &[&to]), tensor_attribute("value", large))
            }
            3 => {
                let (count, to) = (self.of(&scope.counts), self.name());
                scope.counts.push(to.clone());
                let op = self.of(&["Add", "Mul", "Sub", "Max"]);
                return node(op, &[&count, &self.of(&scope.counts)], &[&to]);
            }
            4 => {
                let to = self.name();
                scope.counts.push(to.clone());
                return node("Size", &[&a], &[&to]);
            }
            5 => with(node("Transpose", &[&a], &[&to]), ints("perm", &[1, 0])),
            6 => node("Identity", &[&a], &[&to]),
            _ => node(self.of(&["Relu", "Neg", "Exp"]), &[&a], &[&to]),
        };
        scope.rows.push(to);
        made
    }

    /// A graph of these inputs, as a body inside `scope`.
    fn body(
        &mut self,
        scope: &Scope,
        inputs: &[String],
        outputs: usize,
        depth: usize,
    ) -> GraphProto {
        let mut own = scope.clone();
        own.rows.extend_from_slice(inputs);
        let mut known = Vec::new();
        for _ in 0..self.size(300) {
            let name = self.name();
            known.push(raw(&name, DataType::Float, &[1, 4], &[0; 16]));
            own.rows.push(name);
        }
        if self.rng.random_bool(0.1) {
            let name = self.name();
            known.push(self.zeros(&name));
            own.rows.push(name);
        }
        let nodes = self.nodes(&mut own, depth);
        // What is inside alone is more often of use.
        let last = own.rows.len().saturating_sub(8);
        let outputs: Vec<String> = (0..outputs).map(|_| self.of(&own.rows[last..])).collect();
        let outputs: Vec<&str> = outputs.iter().map(|name| &**name).collect();
        GraphProto { initializer: known, ..inner(&[], nodes, &outputs) }
    }

    fn branch(&mut self, scope: &mut Scope, depth: usize) -> NodeProto {
        let (to, condition) = (self.name(), self.of(&["yes", "yes", "decided"]));
        let [yes, no] = [(); 2].map(|()| self.body(scope, &[], 1, depth));
        scope.rows.push(to.clone());
        let made = node("If", &[condition], &[&to]);
        with(with(made, body("then_branch", yes)), body("else_branch", no))
    }

    fn repeat(&mut self, scope: &mut Scope, depth: usize) -> NodeProto {
        let trips = self.trips(scope);
        let carried: Vec<String> = (0..self.size(20)).map(|_| self.of(&scope.rows)).collect();
        let stacked = self.size(400);
        let inputs: Vec<String> = carried.iter().map(|_| self.name()).collect();
        let mut inside = self.body(scope, &inputs, carried.len() + stacked, depth);
        let [trip, goes] = [self.name(), self.name()];
        let all = [vec![trip, goes.clone()], inputs].concat();
        let declared: Vec<&str> = all.iter().map(|name| &**name).collect();
        inside.input = inner(&declared, vec![], &[]).input;
        inside.output.insert(0, inner(&[], vec![], &[&goes]).output.remove(0));
        let operands = [vec![trips, "yes".to_owned()], carried].concat();
        self.over("Loop", &operands, scope, inside)
    }

    fn scan(&mut self, scope: &mut Scope, depth: usize) -> NodeProto {
        let scanned = self.size(30) + 1;
        let inputs: Vec<String> = (0..scanned).map(|_| self.name()).collect();
        let stacked = self.size(100) + 1;
        let mut inside = self.body(scope, &inputs, stacked, depth);
        let declared: Vec<&str> = inputs.iter().map(|name| &**name).collect();
        inside.input = inner(&declared, vec![], &[]).input;
        let operands: Vec<String> = (0..scanned).map(|_| self.of(&scope.rows)).collect();
        let count = int("num_scan_inputs", i64::try_from(scanned).expect("a number"));
        with(self.over("Scan", &operands, scope, inside), count)
    }

    /// A node of a body; its results may be used behind it.
    fn over(
        &mut self,
        op: &str,
        operands: &[String],
        scope: &mut Scope,
        inside: GraphProto,
    ) -> NodeProto {
        let skipped = usize::from(op == "Loop");
        let results: Vec<String> = (skipped..inside.output.len()).map(|_| self.name()).collect();
        scope.rows.extend_from_slice(&results);
        let operands: Vec<&str> = operands.iter().map(|name| &**name).collect();
        let results: Vec<&str> = results.iter().map(|name| &**name).collect();
        with(node(op, &operands, &results), body("body", inside))
    }

    /// The name of a number of trips.
    fn trips(&mut self, scope: &Scope) -> String {
        if self.rng.random_bool(0.2) {
            return self.of(&scope.counts);
        }
        let (name, count) = (self.name(), self.count(1 << 20));
        let most = self.rng.random_bool(0.1);
        self.known.push(whole(&name, if most { i64::MAX } else { count }));
        name
    }

    fn file(mut self) -> Vec<u8> {
        let mut scope = Scope { rows: vec!["x".to_owned()], counts: vec!["three".to_owned()] };
        let mut nodes = Vec::new();
        while nodes.is_empty() {
            nodes = self.nodes(&mut scope, 5);
        }
        let last = scope.rows.last().expect("the input is one").clone();
        let inputs = vec![value("x", &["N", "4"]), value("decided", &["1"])];
        let known = [vec![truth("yes"), whole("three", 3), vector("list", &[4])], self.known];
        model(graph(inputs, known.concat(), nodes, &[&last])).encode_to_vec()
    }
}

#[test]
fn drawn_branches_and_loops_end_in_time_and_memory() {
    let case = |seed: u64| {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let file = Draw { rng, next: 0, left: 60, known: Vec::new() }.file();
        Case::new(&format!("seed {seed}"), "m.onnx", file).declares(MEMORY)
    };
    let first = support::turn::seed().unwrap_or(0);
    let cases: Vec<Case> = (first..first + FILES).map(case).collect();
    let text = table(&cases);
    let works = text.lines().filter(|line| line.trim() == "works").count();
    let unrolled = text.matches("is not supported").count();
    assert!(works >= 8 && unrolled >= 8, "{works} work, {unrolled} are too large:\n{text}");
}
