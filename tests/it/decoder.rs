//! Decoders with caches of past keys and values generate step by step, on one device and on many.

use std::collections::BTreeMap;
use std::path::Path;

use fanwise::format::{Budget, npz};
use fanwise::internal::agree;
use fanwise::ir::Graph;
use fanwise::model::{LoadOptions, load};
use fanwise::types::Tensor;
use fanwise::{Outputs, Session};

use crate::python::python;

/// The steps that a decoder generates.
const STEPS: usize = 20;

fn integers(dims: &[usize], elements: &[i64]) -> Tensor {
    Tensor::new(dims, elements).unwrap()
}

/// The inputs of the steps of a decoder.
struct Inputs {
    /// Whether positions are one of them.
    positions: bool,
    rows: usize,
    /// The tokens of a step, row by row.
    tokens: Vec<i64>,
    /// Of each row's tokens so far, whether they are none of padding.
    mask: Vec<Vec<i64>>,
    caches: BTreeMap<String, Tensor>,
}

impl Inputs {
    fn new(graph: &Graph, prompt: &Tensor) -> Self {
        let [rows, length] = *prompt.dims() else { panic!("{prompt:?}") };
        let mut mask = vec![vec![1; length]; rows];
        mask[0][0] = 0;
        let (mut caches, mut positions) = (BTreeMap::new(), false);
        for input in graph.inputs() {
            let name = graph.info(input).name.to_string();
            positions |= name == "position_ids";
            if name.starts_with("past") {
                // Steps stand before the elements of a head; there are none yet.
                let mut dims = graph.ty(input).shape.at(i64::try_from(rows).unwrap());
                let steps = dims.len() - 2;
                dims[steps] = 0;
                caches.insert(name, Tensor::new::<f32>(&dims, &[]).unwrap());
            }
        }
        Self { positions, rows, tokens: prompt.to_i64().unwrap(), mask, caches }
    }

    /// The inputs of the next step.
    fn named(&self) -> BTreeMap<String, Tensor> {
        let (total, length) = (self.mask[0].len(), self.tokens.len() / self.rows);
        let mut named = self.caches.clone();
        let mut insert = |name: &str, tensor| named.insert(name.to_owned(), tensor);
        insert("input_ids", integers(&[self.rows, length], &self.tokens));
        insert("attention_mask", integers(&[self.rows, total], &self.mask.concat()));
        if self.positions {
            let own: Vec<i64> =
                (total - length..total).map(|at| i64::try_from(at).unwrap()).collect();
            insert("position_ids", integers(&[self.rows, length], &own.repeat(self.rows)));
        }
        named
    }

    /// Takes in the tokens of a step and its caches.
    fn advance(&mut self, tokens: Vec<i64>, outputs: &Outputs) {
        self.tokens = tokens;
        self.mask.iter_mut().for_each(|row| row.push(1));
        for (name, cache) in &mut self.caches {
            *cache = outputs[&name.replace("past", "present")].clone();
        }
    }
}

/// The logits of the last position, and the token of each row that has the largest.
fn last(logits: &Tensor) -> (Vec<f32>, Vec<i64>) {
    let [_, length, count] = *logits.dims() else { panic!("{logits:?}") };
    let rows = logits.as_slice::<f32>().chunks(length * count);
    let rows: Vec<&[f32]> = rows.map(|row| &row[(length - 1) * count..]).collect();
    let largest = |row: &&[f32]| {
        let best = (0..count).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        i64::try_from(best).unwrap()
    };
    (rows.concat(), rows.iter().map(largest).collect())
}

/// The logits and the tokens of all steps.
fn generate(session: &Session, mut inputs: Inputs) -> (Vec<f32>, Vec<i64>) {
    let (mut all_logits, mut all_tokens) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let outputs = session.run(inputs.named()).unwrap();
        let (logits, tokens) = last(&outputs["logits"]);
        all_logits.extend(logits);
        all_tokens.extend(&tokens);
        inputs.advance(tokens, &outputs);
    }
    (all_logits, all_tokens)
}

fn check(folder: &Path, name: &str, expected: &BTreeMap<String, Tensor>) {
    let path = folder.join(format!("{name}.onnx"));
    let model = load(path.to_str().unwrap(), &LoadOptions::default()).unwrap();
    let of = |gpus: Option<u32>| {
        let builder = Session::builder(model.clone());
        gpus.map_or(Session::builder(model.clone()), |gpus| builder.gpus(gpus)).build().unwrap()
    };
    let (one, three) = (of(None), of(Some(3)));
    for rows in [7, 2] {
        let array = |kind: &str| &expected[&format!("{name}.{rows}.{kind}")];
        let inputs = || Inputs::new(&model.graph, array("prompt"));
        let (logits, tokens) = generate(&one, inputs());
        assert_eq!(tokens, array("tokens").to_i64().unwrap(), "{name}, {rows} rows");
        let found = Tensor::new(array("logits").dims(), &logits).unwrap();
        agree(&found, array("logits"), Some(1e-4)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (many, of_many) = generate(&three, inputs());
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(of_many, tokens, "{name}, {rows} rows on three devices");
        // The graph of each length of the past is readied once, whatever the rows are.
        assert_eq!([one.readied(), three.readied()], [1 + STEPS; 2], "{name}, {rows} rows");
        assert!(bits(&many) == bits(&logits), "{name}, {rows} rows: other bits on three devices");
    }
}

#[test]
#[ignore = "needs Python: cargo xtask test"]
fn decoders_generate_on_three_devices_as_on_one() {
    let folder = tempfile::tempdir().unwrap();
    python("decoder.py", &[folder.path()]);
    let expected =
        npz::read(&folder.path().join("generated.npz"), &mut Budget::new(1 << 30)).unwrap();
    for name in ["separate", "stacked", "gpt2_script", "gpt2_dynamo"] {
        check(folder.path(), name, &expected);
    }
}
