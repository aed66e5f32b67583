//! Graphs that update parameters: replicas hold after each run what one device holds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use fanwise::analysis::prove;
use fanwise::backend::{CPU, CompileError, Cpu, CpuExecutable, Executable, RunError, RunOptions};
use fanwise::internal::check;
use fanwise::ir::{Graph, Weights, from_json, parse, to_json, verify};
use fanwise::lower::{Kernels, LowerError, Support, Types, lower};
use fanwise::op::Op;
use fanwise::pass::{
    Merge, PassError, Repair, Replicate, SimplifyOptions, WeightPlacement, repair, replicate,
    simplify,
};
use fanwise::types::{DType, Device, ShardRule, Split, Target, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

use crate::mutations::{MUTATIONS, UPDATES};
use crate::programs::{executable, inputs, options};
use crate::proof::{Fates, assert_caught, mutate};
use crate::random;

/// A linear model with its gradient written out: momentum, a rate that decays, a count of steps,
/// running means of an input, and the weights of the run before.
const TRAIN: &str = "fanwise 1
symbol N >= 0
param @w : f64[3,2] = \"t#w\" blake3:0000000000000001
param @b : f64[2] = \"t#b\" blake3:0000000000000002
param @vw : f64[3,2] = \"t#vw\" blake3:0000000000000003
param @vb : f64[2] = \"t#vb\" blake3:0000000000000004
param @rate : f64[] = \"t#rate\" blake3:0000000000000005
param @decay : f64[] = \"t#decay\" blake3:0000000000000006
param @steps : i64[] = \"t#steps\" blake3:0000000000000007
param @mean : f64[3] = \"t#mean\" blake3:0000000000000008
param @last : f64[3,2] = \"t#last\" blake3:0000000000000009
param @weight : f64[] = \"t#weight\" blake3:000000000000000a
param @scaled : f64[3,2] = \"t#scaled\" blake3:000000000000000b
graph @train(%x: f64[N,3], %t: f64[N,2], %factor: f64[]) -> (loss: f64[], sum_w: f64[3,2]) {
  %scaled : f64[3,2] = mul(@w, %factor)
  %p : f64[N,2] = matmul(%x, %scaled)
  %y : f64[N,2] = add(%p, @b)
  %e : f64[N,2] = sub(%y, %t)
  %s : f64[N,2] = mul(%e, %e)
  %sum : f64[] = reduce_sum(%s) {axes=[0, 1], keepdims=false}
  %n : i64[] = dims() {scalar=true, values=[max(N, 1)]}
  %nf : f64[] = cast(%n) {to=f64}
  %loss : f64[] = div(%sum, %nf)
  %xt : f64[3,N] = transpose(%x) {perm=[1, 0]}
  %gw : f64[3,2] = matmul(%xt, %e)
  %gb : f64[2] = reduce_sum(%e) {axes=[0], keepdims=false}
  %gwn : f64[3,2] = div(%gw, %nf)
  %gbn : f64[2] = div(%gb, %nf)
  %half : f64[] = constant() {value=f64[] [0.5]}
  %hw : f64[3,2] = mul(@vw, %half)
  %hb : f64[2] = mul(@vb, %half)
  %vw.new : f64[3,2] = add(%hw, %gwn)
  %vb.new : f64[2] = add(%hb, %gbn)
  %dw : f64[3,2] = mul(%vw.new, @rate)
  %db : f64[2] = mul(%vb.new, @rate)
  %w.new : f64[3,2] = sub(@w, %dw)
  %b.new : f64[2] = sub(@b, %db)
  %rate.new : f64[] = mul(@rate, @decay)
  %one : i64[] = constant() {value=i64[] [1]}
  %steps.new : i64[] = add(@steps, %one)
  %sx : f64[3] = reduce_sum(%x) {axes=[0], keepdims=false}
  %mx : f64[3] = div(%sx, %nf)
  %change : f64[3] = sub(%mx, @mean)
  %part : f64[3] = mul(%change, %half)
  %mean.new : f64[3] = add(@mean, %part)
  %sum_w : f64[3,2] = tanh(%gwn)
  update @w = %w.new
  update @b = %b.new
  update @vw = %vw.new
  update @vb = %vb.new
  update @rate = %rate.new
  update @steps = %steps.new
  update @mean = %mean.new
  update @last = @w
  update @weight = %loss
  update @scaled = %scaled
  return %loss, %sum_w
}
";

pub(crate) fn train() -> (Graph, Weights) {
    let graph = parse(TRAIN).unwrap_or_else(|e| panic!("{e}"));
    let mut weights = Weights::default();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for param in graph.params() {
        let dims = param.ty.shape.at(0);
        let count = dims.iter().product();
        let tensor = match (param.ty.dtype, &*param.name) {
            (DType::I64, _) => Tensor::new(&dims, &vec![0i64; count]),
            (_, "rate") => Tensor::new(&dims, &[0.0625f64]),
            (_, "decay") => Tensor::new(&dims, &[0.75f64]),
            _ => {
                let data: Vec<f64> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
                Tensor::new(&dims, &data)
            }
        };
        weights.insert(param.name.clone(), tensor.unwrap());
    }
    (graph, weights)
}

fn step(executable: &CpuExecutable, inputs: &BTreeMap<String, Tensor>) -> Vec<(String, Tensor)> {
    let done = executable.run(inputs, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    done.outputs.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect()
}

/// Fails unless all elements agree within `tolerance` of the largest, or of 1 where all are
/// smaller.
fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(a.tensor_type(), b.tensor_type(), "{what}");
    let (a, b) = (a.to_f64(), b.to_f64());
    let largest = a.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
    for (a, b) in a.iter().zip(&b) {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same || (a - b).abs() <= tolerance * largest, "{what}: {a} and {b}");
    }
}

fn ways(count: u32) -> Vec<Replicate> {
    let mut ways = Vec::new();
    let uneven: Vec<u32> = (0..count).map(|i| i * 3 % 4).collect();
    for weights in [WeightPlacement::Template, WeightPlacement::Cpu, WeightPlacement::Mirrored] {
        for (merge, rule) in [
            (Merge::Cpu, ShardRule::RemainderLast),
            (Merge::Gpu, ShardRule::Balanced),
            (Merge::Cpu, ShardRule::Weighted(uneven.clone())),
        ] {
            let devices: Vec<Device> = (0..count).map(Device::gpu).collect();
            if Split::new(devices.clone(), rule.clone()).is_err() {
                continue;
            }
            let how = Replicate::over(devices);
            ways.push(Replicate { rule, merge, weights, repair: Repair::Comm, ..how });
        }
    }
    ways
}

/// The bits of the first element of the table.
fn first(weights: &Weights) -> u32 {
    weights.get("table").unwrap().as_slice::<f32>()[0].to_bits()
}

#[test]
fn replicas_hold_what_one_device_holds_after_every_step() {
    let (model, weights) = train();
    let template = repair(&model, Repair::Comm).unwrap().into_graph();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let batches: Vec<_> = [7, 1, 0, 16, 3].map(|n| inputs(&model, n, &mut rng)).to_vec();
    let one = executable(&model, &weights, &CPU, 1);
    let expected: Vec<_> =
        batches.iter().map(|batch| (step(&one, batch), one.weights().unwrap())).collect();
    for count in 1..=8 {
        for how in ways(count) {
            let what = format!("{count} devices, {:?}, {:?}, {}", how.weights, how.merge, how.rule);
            let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{what}: {e}"));
            let verified = verify(&graph).unwrap_or_else(|e| panic!("{what}: {e}\n{graph}"));
            prove(&template, &verified).unwrap_or_else(|e| panic!("{what}: {e}\n{graph}"));
            let program = lower(&verified, &CPU).unwrap();
            for n in [0, 1, 16] {
                let bound = program.bind(n).unwrap();
                check(&program, &bound).unwrap_or_else(|e| panic!("{what}: {e}\n{program}"));
            }
            let many = Cpu::new(2).unwrap().executable(program, &weights).unwrap();
            for (batch, (outputs, held)) in batches.iter().zip(&expected) {
                for ((name, want), (_, got)) in outputs.iter().zip(step(&many, batch)) {
                    assert_close(want, &got, 1e-12, &format!("{what}: {name}"));
                }
                let now = many.weights().unwrap();
                for (name, want) in held.iter() {
                    let got = now.get(name).unwrap();
                    assert_close(want, got, 1e-12, &format!("{what}: @{name}"));
                    if matches!(&**name, "rate" | "steps" | "decay") {
                        assert_eq!(want, got, "{what}: @{name}");
                    }
                }
            }
        }
    }
    let last = &expected.last().unwrap().1;
    assert_eq!(last.get("steps").unwrap().as_slice::<i64>(), [5]);
    assert_eq!(last.get("last"), expected[3].1.get("w"));
}

#[test]
fn replicated_updates_are_written_as_they_were() {
    let (model, _) = train();
    let mut text = String::new();
    for weights in [WeightPlacement::Cpu, WeightPlacement::Mirrored] {
        let devices = vec![Device::gpu(0), Device::gpu(1)];
        let how = Replicate { weights, repair: Repair::Comm, ..Replicate::over(devices) };
        let graph = replicate(&model, &how).unwrap();
        assert_eq!(parse(&graph.to_string()).unwrap(), graph);
        assert_eq!(from_json(&to_json(&graph)).unwrap(), graph);
        // What only updates need is in no replica, what others need too is not written again.
        let count = |name: &str| graph.to_string().matches(&format!("%{name}")).count();
        assert_eq!(count("dw.r0"), 0, "{graph}");
        assert!(count("gwn.r0") > 0, "{graph}");
        text.push_str(&graph.to_string());
        text.push('\n');
    }
    support::snap::assert("replicate", "variables", &text);
    let (graph, weights) = train();
    let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
    let report = program.bind(16).unwrap().report(&program).to_string();
    support::snap::assert("program", "variables", &format!("{program}\n{report}"));
    assert_eq!(weights.len(), program.params.len());
}

#[test]
fn parts_and_rows_are_no_updates() {
    let text = |op: &str| {
        format!(
            "fanwise 1\nsymbol N >= 0\nparam @w : f32[4] = \"m#w\" blake3:0000000000000000\n\
             graph @g(%x: f32[N,4]) -> () {{\n  %y : f32[4] = {op}(%x) {{axes=[0], \
             keepdims=false}}\n  \
             update @w = %y\n  return\n}}\n"
        )
    };
    for op in ["reduce_sum", "reduce_max", "reduce_mean"] {
        let graph = parse(&text(op)).unwrap_or_else(|e| panic!("{e}"));
        let how =
            |repair| Replicate { repair, ..Replicate::over(vec![Device::gpu(0), Device::gpu(1)]) };
        for allowed in [Repair::None, Repair::Local] {
            let Err(PassError::Refused(refused)) = replicate(&graph, &how(allowed)) else {
                panic!("{op}, {allowed:?}")
            };
            let told = refused[0].to_string();
            assert!(told.contains("part of what the parameter `w` is to hold"), "{told}");
            assert!(told.contains("`Replicate::repair comm`"), "{told}");
        }
        let replicated = replicate(&graph, &how(Repair::Comm)).unwrap();
        assert_eq!(replicated.updates().len(), 1);
    }
}

/// `model` with some of its outputs that have no rows as updates of new parameters, whose old
/// values others use.
fn updating(model: &Graph, weights: &Weights, rng: &mut ChaCha8Rng) -> (Graph, Weights) {
    let (mut json, mut held): (Json, _) =
        (serde_json::from_str(&to_json(model)).unwrap(), weights.clone());
    let mut updates = Vec::new();
    let outputs = std::mem::take(json["outputs"].as_array_mut().unwrap());
    let types = model.outputs().iter().map(|o| model.ty(o.value).clone());
    for (i, (output, ty)) in outputs.into_iter().zip(types).enumerate() {
        let fixed = ty.shape.as_const().is_some() && output["value"].get("value").is_some();
        if !fixed || i == 0 {
            json["outputs"].as_array_mut().unwrap().push(output);
            continue;
        }
        let (name, shape) = (format!("new{i}"), ty.shape.at(0).to_vec());
        held.insert(name.as_str(), Tensor::zeros(ty.dtype, &shape).unwrap());
        json["params"].as_array_mut().unwrap().push(json!({
            "name": name, "dtype": ty.dtype.name(), "shape": shape, "file": "m", "key": name,
            "blake3": "0000000000000000", "device": "cpu:0"
        }));
        let mut value = output["value"].clone();
        if rng.random() {
            let (of, tail) = (value.clone(), format!("tail{i}"));
            json["nodes"].as_array_mut().unwrap().push(json!({
                "op": "add", "operands": [of, { "param": name }], "device": "cpu:0",
                "results": [{ "name": tail, "dtype": ty.dtype.name(), "shape": shape }]
            }));
            value = json!({ "value": tail });
        }
        updates.push(json!({ "param": name, "values": [value] }));
    }
    json["updates"] = updates.into();
    let graph = from_json(&json.to_string()).unwrap_or_else(|e| panic!("{e}\n{model}"));
    (graph, held)
}

#[test]
fn random_graphs_update_what_one_device_does() {
    let mut updated = 0;
    for seed in 0..120 {
        let (model, weights) = random::across(seed, 4 + usize::try_from(seed % 10).unwrap());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (model, weights) = updating(&model, &weights, &mut rng);
        updated += model.updates().len();
        let how = options(1 + u32::try_from(seed % 5).unwrap(), seed / 5, Repair::Comm);
        let template = repair(&model, Repair::Comm).unwrap().into_graph();
        let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{seed}: {e}"));
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{seed}: {e}\n{graph}"));
        prove(&template, &verified).unwrap_or_else(|e| panic!("{seed}: {e}\n{template}\n{graph}"));
        let [one, many] = [&model, &graph].map(|g| executable(g, &weights, &CPU, 1));
        for n in [3, 1, 9] {
            let what = format!("graph {seed}, {n} rows\n{model}\n{graph}");
            let batch = inputs(&model, n, &mut rng);
            let Ok(_) = one.run(&batch, &RunOptions::default()) else { continue };
            many.run(&batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let (want, got) = (one.weights().unwrap(), many.weights().unwrap());
            for (name, want) in want.iter() {
                assert_close(want, got.get(name).unwrap(), 1e-5, &format!("@{name}, {what}"));
            }
        }
    }
    assert!(updated > 40, "{updated} updates");
}

#[test]
fn no_mutant_of_an_update_is_proved() {
    let mut fates = Fates::new();
    let (model, weights) = train();
    for seed in 0..8 {
        mutate(UPDATES, (&model, &weights), seed, 60, &mut fates);
        mutate(MUTATIONS, (&model, &weights), seed, 20, &mut fates);
    }
    for seed in 0..24 {
        let (model, weights) = random::across(seed, 8);
        let (model, weights) = updating(&model, &weights, &mut ChaCha8Rng::seed_from_u64(seed));
        if !model.updates().is_empty() {
            mutate(UPDATES, (&model, &weights), seed, 8, &mut fates);
        }
    }
    assert_caught(UPDATES, &fates);
}

/// A table that is looked up, which fails for numbers beyond it, and two variables.
const LOOKUP: &str = "fanwise 1
symbol N >= 0
param @table : f32[4,2] = \"t#table\" blake3:0000000000000001
param @steps : i64[] = \"t#steps\" blake3:0000000000000002
graph @lookup(%i: i64[N]) -> (y: f32[N,2]) {
  %one : i64[] = constant() {value=i64[] [1]}
  %next : i64[] = add(@steps, %one)
  %twice : f32[4,2] = add(@table, @table)
  %y : f32[N,2] = gather(%twice, %i) {axis=0}
  update @steps = %next
  update @table = %twice
  return %y
}
";

fn lookup() -> (Graph, Weights) {
    let mut weights = Weights::default();
    weights.insert("table", Tensor::new(&[4, 2], &[1f32, 2., 3., 4., 5., 6., 7., 8.]).unwrap());
    weights.insert("steps", Tensor::scalar(0i64));
    (parse(LOOKUP).unwrap_or_else(|e| panic!("{e}")), weights)
}

fn ids(ids: &[i64]) -> BTreeMap<String, Tensor> {
    BTreeMap::from([("i".to_owned(), Tensor::new(&[ids.len()], ids).unwrap())])
}

fn both(count: u32) -> Vec<(Graph, Weights)> {
    let (graph, weights) = lookup();
    let ways = ways(count).into_iter();
    let mut graphs: Vec<Graph> = ways.map(|how| replicate(&graph, &how).unwrap()).collect();
    graphs.push(graph);
    graphs.into_iter().map(|graph| (graph, weights.clone())).collect()
}

#[test]
fn a_run_that_fails_leaves_the_variables_as_they_were() {
    for (graph, weights) in both(3) {
        let executable = executable(&graph, &weights, &CPU, 2);
        let steps = |steps: i64| {
            let now = executable.weights().unwrap();
            assert_eq!(now.get("steps"), Some(&Tensor::scalar(steps)), "{graph}");
            now
        };
        assert_eq!(steps(0), weights);
        step(&executable, &ids(&[0, 1, 2]));
        let before = steps(1);
        for wrong in [&[9, 0, 0][..], &[0, 0, 9], &[0, 9]] {
            let error = executable.run(&ids(wrong), &RunOptions::default()).unwrap_err();
            assert!(matches!(error, RunError::Op { .. }), "{error}");
            assert_eq!(steps(1), before);
        }
        let tight = RunOptions { max_memory: Some(64), ..RunOptions::default() };
        assert!(matches!(executable.run(&ids(&[0]), &tight), Err(RunError::Memory { .. })));
        let outputs = step(&executable, &ids(&[0, 3, 1]));
        assert_eq!(outputs[0].1.as_slice::<f32>(), [4., 8., 28., 32., 12., 16.]);
        let after = steps(2);
        assert_eq!(first(&after), 4.0f32.to_bits());
        // What was read before is a state of its own.
        assert_eq!(first(&before), 2.0f32.to_bits());
        assert_eq!(first(&weights), 1.0f32.to_bits());
    }
}

#[test]
fn runs_that_update_happen_one_after_the_other() {
    for (graph, weights) in both(2) {
        let executable = executable(&graph, &weights, &CPU, 2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        step(&executable, &ids(&[0, 1]));
                        executable.weights().unwrap();
                    }
                });
            }
        });
        let now = executable.weights().unwrap();
        assert_eq!(now.get("steps"), Some(&Tensor::scalar(20i64)));
        assert_eq!(first(&now), (f32::from(1u16 << 4) * 65536.0).to_bits());
    }
}

#[test]
fn variables_can_be_set() {
    for (graph, weights) in both(3) {
        let executable = executable(&graph, &weights, &CPU, 1);
        step(&executable, &ids(&[0, 1, 2]));
        let mut new = Weights::default();
        new.insert("steps", Tensor::scalar(41i64));
        new.insert("other", Tensor::scalar(0i64));
        let error = executable.set_weights(&new).unwrap_err();
        assert!(matches!(error, CompileError::UnknownParam(_)), "{error}");
        new.retain(|name| name == "steps");
        new.insert("table", Tensor::scalar(0i64));
        let error = executable.set_weights(&new).unwrap_err();
        assert!(matches!(error, CompileError::ParamType { .. }), "{error}");
        assert_eq!(executable.weights().unwrap().get("steps"), Some(&Tensor::scalar(1i64)));
        new.retain(|name| name == "steps");
        executable.set_weights(&new).unwrap();
        step(&executable, &ids(&[0, 1, 2]));
        let now = executable.weights().unwrap();
        assert_eq!(now.get("steps"), Some(&Tensor::scalar(42i64)));
        assert_eq!(first(&now), 4.0f32.to_bits());
        executable.set_weights(&weights).unwrap();
        assert_eq!(executable.weights().unwrap(), weights);
    }
}

#[test]
fn what_depends_on_variables_is_not_folded() {
    let (mut graph, mut weights) = lookup();
    simplify(&mut graph, &mut weights, &SimplifyOptions::default()).unwrap();
    assert_eq!(graph.updates().len(), 2);
    assert_eq!(graph, lookup().0, "{graph}");
}

/// A target whose programs have no variables.
#[derive(Debug)]
struct Fixed;

impl Kernels for Fixed {
    fn target(&self) -> &Target {
        static TARGET: LazyLock<Target> =
            LazyLock::new(|| Target { updates: false, ..CPU.target().clone() });
        &TARGET
    }

    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        CPU.supports(op, types)
    }
}

#[test]
fn programs_without_variables_are_said_to_be() {
    let (graph, _) = lookup();
    let verified = verify(&graph).unwrap();
    let Err(LowerError::Update(name)) = lower(&verified, &Fixed) else { panic!() };
    assert_eq!(name, "steps");
}
