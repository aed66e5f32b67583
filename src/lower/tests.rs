use std::collections::BTreeSet;

use super::program::Region;
use super::testing::{Replication, block, template, views};
use super::{
    Action, Bound, Buffer, BufferId, Guard, Lane, Program, Step, Storage, check, check_batches,
    lower,
};
use crate::backend::{CPU, CUDA};
use crate::ir::{Builder, Graph, Placement, Value, parse, verify};
use crate::op::{Concat, Slice, Softmax, TopK, Unary};
use crate::pass::{Repair, Replicate, WeightPlacement, replicate};
use crate::snap;
use crate::types::{Device, Dim, ShardRule};

fn program(graph: &Graph) -> Program {
    lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &CPU).unwrap()
}

#[test]
fn programs_print() {
    let on_host = Replication::of(2).graph().0;
    snap::assert("program", "merge_on_host", &program(&on_host).to_string());
    let on_gpu = Replication {
        rule: ShardRule::Balanced,
        merge: Device::gpu(0),
        weights: Placement::Mirrored,
        ..Replication::of(2)
    };
    snap::assert("program", "merge_on_gpu", &program(&on_gpu.graph().0).to_string());
    snap::assert("program", "fused", &program(&block().0).to_string());
    snap::assert("program", "views", &program(&views().0).to_string());
}

#[test]
fn memory_plans_are_sound() {
    let mut graphs = vec![template().0, views().0, block().0];
    for count in 1..=3 {
        for merge in [Device::HOST, Device::gpu(0)] {
            for rule in [ShardRule::RemainderLast, ShardRule::Weighted((0..count).collect())] {
                if rule.offsets(count).is_ok() {
                    graphs.push(Replication { rule, merge, ..Replication::of(count) }.graph().0);
                }
            }
        }
    }
    for graph in graphs {
        let program = program(&graph);
        for n in [0, 1, 2, 3, 10] {
            let bound = program.bind(n).unwrap();
            check(&program, &bound).unwrap_or_else(|e| panic!("{n} rows: {e}\n{program}"));
            assert!(bound.devices.iter().all(|d| d.planned == d.live), "{program}");
        }
    }
}

/// Two variables, one of which takes the other's value, on devices that each have both.
const VARIABLES: &str = "fanwise 1
symbol N >= 0
device cpu:0, gpu:0, gpu:1
split @dp of N over [gpu:0, gpu:1] rule=remainder-last { o = [0, N/2] }
param @w : f32[4] = \"m#w\" blake3:0000000000000001 mirror @dp
param @last : f32[4] = \"m#last\" blake3:0000000000000002 mirror @dp
graph @train(%x: f32[N]) -> (x: f32[N]) {
  on gpu:0 {
    %new.d0 : f32[4] = sub(@w, @last)
  }
  on gpu:1 {
    %new.d1 : f32[4] = sub(@w, @last)
  }
  update @w = %new.d0, %new.d1
  update @last = @w, @w
  return %x
}
";

#[test]
fn corrupted_updates_are_found() {
    let program = program(&parse(VARIABLES).unwrap_or_else(|e| panic!("{e}")));
    check(&program, &program.bind(3).unwrap()).unwrap_or_else(|e| panic!("{e}\n{program}"));
    assert_eq!(program.updates, [0, 1]);
    let refused = |wrong: &Program, why: &str| {
        let error = check(wrong, &wrong.bind(3).unwrap()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    for d in 1..3 {
        let update = |b: &Buffer| matches!(b.storage, Storage::Update(_));
        for (at, _) in program.devices[d].buffers.iter().enumerate().filter(|(_, b)| update(b)) {
            let mut lost = program.clone();
            lost.devices[d].buffers[at].storage = Storage::Arena;
            lost.devices[d].regions = super::memory::regions(&lost.devices, d);
            refused(&lost, "has 0 buffers");
            let mut twice = program.clone();
            let buffer = twice.devices[d].buffers[at].clone();
            twice.devices[d].buffers.push(buffer);
            assert!(check(&twice, &twice.bind(3).unwrap()).is_err());
        }
        for step in 0..program.devices[d].steps.len() {
            let mut unwritten = program.clone();
            unwritten.devices[d].steps.remove(step);
            refused(&unwritten, "was not written");
        }
    }
}

/// Two regions may not begin at one place where a step touches one of them while the other is live;
/// those on the lane for exchange run one after the other.
fn regions_may_not_meet(program: &Program, bound: &Bound) {
    for (d, device) in bound.devices.iter().enumerate() {
        let own = &program.devices[d];
        let regions = &own.regions;
        let touches = |step: &Step, buffer: BufferId| match &step.action {
            Action::Launch(launch) => {
                let mut touched = launch.operands.iter().chain(&launch.results);
                touched.any(|b| own.region(*b) == Some(buffer))
            }
            Action::Copy { to, .. } => own.region(*to) == Some(buffer),
            Action::Wait(_) | Action::Record(_) => false,
        };
        let meet = |a: &Region, b: &Region| {
            let live = own.steps.iter().take(b.last + 1).skip(b.first);
            live.filter(|s| s.lane == Lane::Compute).any(|s| touches(s, a.buffer))
        };
        for (i, a) in regions.iter().enumerate() {
            for b in regions[..i].iter().filter(|b| meet(a, b) || meet(b, a)) {
                let mut wrong = bound.clone();
                let place = device.locations[a.buffer].offset;
                let shift = wrong.devices[d].locations[b.buffer].offset;
                for id in program.devices[d].buffer_ids() {
                    if program.devices[d].region(id) == Some(b.buffer) {
                        let at = &mut wrong.devices[d].locations[id];
                        at.offset = at.offset - shift + place;
                    }
                }
                wrong.devices[d].planned *= 4;
                assert!(check(program, &wrong).is_err(), "{a:?} and {b:?} on device {d}");
            }
        }
    }
}

#[test]
fn corrupted_plans_are_found() {
    let graph = Replication { merge: Device::gpu(0), ..Replication::of(3) }.graph().0;
    let program = program(&graph);
    regions_may_not_meet(&program, &program.bind(6).unwrap());
    let mut early = program.clone();
    early.devices[1].steps.retain(|s| !matches!(s.action, Action::Wait(_)));
    let error = check(&early, &early.bind(6).unwrap()).unwrap_err();
    assert!(error.to_string().contains("nothing waits until"), "{error}");
}

/// What runs beside other steps has a place of its own until it is waited for, and each wait is
/// needed.
#[test]
fn corrupted_lanes_are_found() {
    let template = parse(include_str!("../../tests/cases/lower/buckets.fan"));
    let devices = (0..3).map(Device::gpu).collect();
    let options = Replicate {
        weights: WeightPlacement::Mirrored,
        repair: Repair::Comm,
        ..Replicate::over(devices)
    };
    let graph = replicate(&template.unwrap_or_else(|e| panic!("{e}")), &options).unwrap();
    let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
    let bound = program.bind(7).unwrap();
    check(&program, &bound).unwrap_or_else(|e| panic!("{e}\n{program}"));
    regions_may_not_meet(&program, &bound);
    let mut reasons = BTreeSet::new();
    for (d, device) in program.devices.iter().enumerate() {
        for (i, step) in device.steps.iter().enumerate() {
            // Of two waits for the other lane in a row the second is enough.
            let waits = |step: Option<&Step>| {
                step.is_some_and(|s| s.lane == Lane::Compute && matches!(s.action, Action::Wait(_)))
            };
            let in_row = waits(Some(step)) && waits(device.steps.get(i + 1));
            if matches!(step.action, Action::Wait(_)) && !in_row {
                let mut early = program.clone();
                early.devices[d].steps.remove(i);
                let mut bound = bound.clone();
                bound.devices[d].active.remove(i);
                let error =
                    check(&early, &bound).expect_err(&format!("step {i} of {d}\n{program}"));
                let has = |text: &str| error.reason.contains(text);
                reasons.insert((has("nothing waits until"), has("may run at the same time")));
            }
        }
    }
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), [(false, true), (true, false)]);
}

#[test]
fn an_elementwise_result_takes_the_place_of_its_dying_operand() {
    let mut build = Builder::new("chain");
    let input = build.input("x", super::testing::rows(4));
    let first = build.op("a", Unary::Exp, &[input]).unwrap();
    let second = build.op("b", Concat { axis: 1 }, &[first, first]).unwrap();
    let third = build.op("c", Unary::Relu, &[second]).unwrap();
    let fourth = build.op("d", Concat { axis: 1 }, &[third, third]).unwrap();
    build.output("y", fourth);
    let program = program(&build.finish().0);
    let storage = |name: &str| {
        let found = program.devices[0].buffers.iter().find(|b| &*b.name == name);
        found.map(|b| b.storage.clone()).unwrap()
    };
    assert_eq!(storage("b"), Storage::Arena);
    assert_eq!(storage("c"), Storage::Reuse { of: BufferId(2) });
    assert_eq!(storage("d"), Storage::Output(0));
}

/// A kernel of all of them would take minutes to compile.
#[test]
fn a_long_chain_is_several_kernels() {
    let mut b = Builder::new("g");
    let mut x = b.input("x", "f32[N,4]".parse().unwrap());
    for i in 0..70 {
        x = b.op(&format!("y{i}"), Unary::Tanh, &[x]).unwrap();
    }
    b.output("y", x);
    let program = program(&b.finish().0);
    let steps = program.devices.iter().flat_map(|device| &device.steps);
    let chains: Vec<usize> = steps
        .filter_map(|step| match &step.action {
            Action::Launch(launch) => Some(launch.chain.steps.len()),
            Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
        })
        .collect();
    assert_eq!(chains, [32, 32, 6]);
}

/// A chain reads the same operand before and behind a batch norm, and writes over another.
#[test]
fn folded_chains_keep_their_operands_apart() {
    let graph = parse(
        "fanwise 1
symbol N >= 0
param @s : f32[3] = \"t#s\" blake3:0000000000000001
param @b : f32[3] = \"t#b\" blake3:0000000000000002
param @m : f32[3] = \"t#m\" blake3:0000000000000003
param @v : f32[3] = \"t#v\" blake3:0000000000000004
graph @twice(%x: f32[N,3,4]) -> (z: f32[N,3,4], w: f32[N,3,4]) {
  %p : f32[N,3,4] = softmax(%x) {axis=2}
  %q : f32[N,3,4] = softmax(%x) {axis=1}
  %a : f32[N,3,4] = add(%q, %p)
  %n : f32[N,3,4] = batch_norm(%a, @s, @b, @m, @v)
  %z : f32[N,3,4] = mul(%n, %p)
  %w : f32[N,3,4] = softmax(%q) {axis=2}
  return %z, %w
}
",
    );
    let text = program(&graph.unwrap()).to_string();
    let chain = text.lines().find(|line| line.contains("scale_shift(")).unwrap();
    let number = |name: &str| {
        let line =
            text.lines().find(|line| line.contains(&format!(" {name}: f32[N,3,4]"))).unwrap();
        line.trim().split(' ').next().unwrap().to_owned()
    };
    assert!(chain.ends_with(&format!("mul(., {}[full]) `z`", number("p"))), "{text}");
}

#[test]
fn a_joined_axis_in_front_is_written_in_place() {
    let mut build = Builder::new("rows");
    let input = build.input("x", super::testing::rows(4));
    let half = Dim::n().floor_div(&2.into());
    let top = build.op("top", Slice::rows(0, Dim::ZERO, half.clone()), &[input]).unwrap();
    let rest = build.op("rest", Slice::rows(0, half.clone(), Dim::n()), &[input]).unwrap();
    let low = build.op("low", Unary::Neg, &[rest]).unwrap();
    let swapped = build.op("swapped", Concat { axis: 0 }, &[low, top, low]).unwrap();
    build.output("y", swapped);
    let program = program(&build.finish().0);
    check(&program, &program.bind(5).unwrap()).unwrap();
    let text = program.to_string();
    assert!(text.contains("low: f32[N-(N/2),4] in %4 at 0"), "{text}");
    assert_eq!(text.matches("copy").count(), 2, "{text}");
}

/// A plan that only large batches have is checked, too.
#[test]
fn a_program_for_many_rows_is_checked() {
    let mut build = Builder::new("many");
    let input = build.input("x", super::testing::rows(4));
    let first = build.op("a", Softmax::Softmax { axis: 1 }, &[input]).unwrap();
    let best = TopK { axis: 0, k: Dim::from(5000), largest: true, local: false };
    let found = build.all("b", best, &[first]).unwrap();
    build.output("y", found[0]);
    let mut program = program(&build.finish().0);
    assert!(program.bind(4999).is_err());
    check_batches(&program).unwrap();
    program.devices[0].steps.remove(0);
    let error = check_batches(&program).unwrap_err();
    assert_eq!(error.step, 0, "{error}");
}

#[test]
fn guards_follow_the_rows() {
    let holds = |guard: Guard, rows: [i64; 3]| guard.holds(&rows);
    assert!(holds(Guard::Always, [0, 0, 0]));
    assert!(holds(Guard::Rows(2), [0, 0, 5]) && !holds(Guard::Rows(1), [1, 0, 5]));
    assert!(holds(Guard::First(0), [0, 0, 0]) && holds(Guard::First(0), [1, 0, 0]));
    assert!(!holds(Guard::First(0), [0, 1, 0]) && holds(Guard::First(1), [0, 1, 1]));
    assert!(!holds(Guard::First(2), [0, 1, 1]) && !holds(Guard::First(2), [0, 0, 0]));
    let all = [Guard::Always, Guard::Rows(0), Guard::Rows(1), Guard::First(0), Guard::First(1)];
    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
        let rows = (0..8i64).map(|i| [i & 1, i >> 1 & 1, i >> 2]);
        let follows = rows.into_iter().all(|rows| !a.holds(&rows) || b.holds(&rows));
        assert!(follows || !a.implies(b), "{a} does not imply {b}");
    }
}

#[test]
fn what_a_replica_without_rows_lacks_is_not_taken() {
    let (mut graph, _) = Replication::of(2).graph();
    let relu = graph.ids().find(|id| graph.node(*id).label() == "h.r1.h").unwrap();
    let output = Value { node: relu, output: 0 };
    let place = crate::ir::DevicePlacement { device: Device::HOST, replica: Some(0) };
    let names = ["mixed".into()];
    let op = Unary::Neg.into();
    graph.add(op, &[output], &names, place, crate::ir::Origin::default()).unwrap();
    assert!(verify(&graph).is_err());
}

#[test]
fn memory_reports_print() {
    let program = program(&Replication::of(2).graph().0);
    let text = program.bind(7).unwrap().report(&program).to_string();
    snap::assert("program", "memory", &text);
}

/// Two branches of two steps each, of which no two read the same input.
fn branches() -> Program {
    let mut b = Builder::new("branches");
    for name in ["a", "b"] {
        let x = b.input(&format!("x_{name}"), super::testing::rows(8));
        let first = Softmax::Softmax { axis: 1 };
        let h = b.op(&format!("h_{name}"), first, &[x]).unwrap();
        let y = b.op(&format!("y_{name}"), Softmax::LogSoftmax { axis: 1 }, &[h]).unwrap();
        b.output(&format!("y_{name}"), y);
    }
    let how = Replicate::over(vec![Device::gpu(0)]);
    let graph = replicate(&b.finish().0, &how).unwrap();
    lower(&verify(&graph).unwrap(), &CUDA).unwrap()
}

#[test]
fn branches_are_rows() {
    let mut program = branches();
    let launches = |program: &Program| -> Vec<(String, bool)> {
        let steps = program.devices[1].steps.iter();
        let launches = steps.filter(|step| matches!(step.action, Action::Launch(_)));
        launches.map(|step| (step.label.to_string(), step.beside)).collect()
    };
    let wanted = [("h_a.r0", false), ("h_b.r0", true), ("y_a.r0", false), ("y_b.r0", true)];
    assert_eq!(launches(&program), wanted.map(|(name, beside)| (name.to_owned(), beside)));
    let bound = program.bind(3).unwrap();
    check(&program, &bound).unwrap();
    assert!(program.to_string().contains("  beside if rows(0): softmax"), "{program}");
    // The second layers may not run beside the first, whose results they read.
    for step in &mut program.devices[1].steps {
        step.beside |= &*step.label == "y_a.r0";
    }
    let error = check(&program, &bound).unwrap_err();
    assert!(error.to_string().contains("is written by a step beside it"), "{error}");
}

/// On a target that runs no launches together each step stands alone.
#[test]
fn the_host_runs_one_step_at_a_time() {
    let (graph, _) = template();
    assert!(program(&graph).devices.iter().flat_map(|d| &d.steps).all(|step| !step.beside));
}
