use std::collections::{BTreeSet, HashSet};

use clap::Parser;

use super::CompileArgs;
use super::emit::{KINDS, Kind};
use super::step::Step;
use crate::backend::{CPU, CUDA};
use crate::cli::paths;
use crate::ir::picture::{self, Claims, Level};
use crate::ir::{self, Builder, Graph};
use crate::lower::{self, Action, Kernels, Program};
use crate::op::{Binary, Unary};
use crate::pass::{self, Replicate};
use crate::types::Device;
use crate::zoo;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: CompileArgs,
}

fn args(line: &[&str]) -> CompileArgs {
    let start = ["compile", "--target", "cpu"];
    Line::try_parse_from(start.iter().chain(line)).unwrap().args
}

#[test]
fn kinds_that_write_folders_are_known() {
    for (name, kind) in KINDS {
        assert_eq!(matches!(kind, Kind::Kernels(_)), paths::KERNELS.contains(&name), "{name}");
    }
}

fn replicas(model: &str, gpus: &str) -> Graph {
    divided(&[model, "--gpus", gpus])
}

/// The replicas of a model, by the arguments of a command.
fn divided(line: &[&str]) -> Graph {
    let args = args(line);
    let model = args.model.load_open().unwrap();
    args.replicate.apply(&args.model, &model.graph, args.place()).unwrap().graph.into_owned()
}

#[track_caller]
fn assert_readable(name: &str, graph: &Graph, also_unfolded: bool) {
    for level in [Level::Layers, Level::Operators] {
        for folds in [true, false].into_iter().filter(|folds| *folds || also_unfolded) {
            let faults = picture::faults(graph, level, folds);
            assert!(faults.is_empty(), "{name} {level:?} {folds}: {:#?}", &faults[..1]);
        }
    }
}

fn step_on_four(more: &[&str]) -> Graph {
    step(more).graph
}

fn step(more: &[&str]) -> Step {
    let line = ["zoo:mini_googlenet", "--gpus", "4", "--loss", "categorical-crossentropy"];
    args(&[&line[..], more].concat()).step().unwrap()
}

/// What a page tells of a value has its claim, in a step of training, too: but for what is there
/// because of the replicas.
#[test]
fn values_of_a_step_have_their_claims() {
    let step = step(&[]);
    let claims = step.claims().unwrap();
    let values = step.graph.ids().filter(|id| step.graph.node(*id).op().is_some());
    let names = values.flat_map(|id| step.graph.node(id).results()).map(|r| &r.name);
    let (with, without): (Vec<_>, Vec<_>) =
        names.partition(|name| claims.contains_key(picture::before_replication(name)));
    assert!(with.len() > 20 * without.len(), "{} with, without {without:?}", with.len());
}

fn program(graph: &Graph, kernels: &dyn Kernels) -> Program {
    lower::lower(&ir::verify(graph).unwrap(), kernels).unwrap()
}

#[test]
fn boxes_and_labels_do_not_overlap() {
    for entry in zoo::names() {
        assert_readable(entry, &replicas(&format!("zoo:{entry}"), "3"), true);
    }
    assert_readable("xception", &replicas("zoo:xception", "8"), true);
    let bert = "tests/models/exported/torch_dynamo_bert.onnx";
    assert_readable(bert, &replicas(bert, "3"), true);
    assert_readable("a step", &step_on_four(&[]), true);
    assert_readable("a mirrored step", &step_on_four(&["--weights", "mirrored"]), true);
    // The host has several rows of inputs and slices, which lines pass.
    let mut b = Builder::new("many");
    let inputs: Vec<_> =
        (0..40).map(|i| b.input(&format!("input_{i}"), "f32[N,2]".parse().unwrap())).collect();
    let mut sum = inputs[0];
    for (at, input) in inputs.iter().enumerate().skip(1) {
        sum = b.op(&format!("sum_{at}"), Binary::Add, &[sum, *input]).unwrap();
    }
    b.output("y", sum);
    let many = pass::replicate(&b.finish().0, &Replicate::over((0..2).map(Device::gpu).collect()))
        .unwrap();
    assert_readable("many inputs", &many, true);
}

/// The numbers of rows differ, of all replicas or of some.
#[test]
fn lanes_of_unequal_replicas_are_readable() {
    for (rule, told) in [
        ("balanced", "replicas 0–7, rows by balanced"),
        ("weighted:3,1,1,1,1,1,1,1", "replicas 0–7, rows by weighted:3,1,1,1,1,1,1,1"),
    ] {
        let graph = divided(&["zoo:mlp", "--gpus", "8", "--shards", rule]);
        assert_readable(rule, &graph, true);
        let svg = picture::to_svg(&graph, Level::Layers);
        assert!(svg.contains("gpu:0 … gpu:7 ×8</text>"), "{rule}");
        assert!(svg.contains(&format!(">{told}</text>")), "{rule}");
    }
}

#[test]
fn an_encoder_as_deep_as_bert_is_readable() {
    let text = zoo::build("transformer").unwrap().0.to_string();
    let model = ir::parse(&support::deep::encoder(&text, 12)).unwrap();
    let three = Replicate::over((0..3).map(Device::gpu).collect());
    let graph = pass::replicate(&model, &three).unwrap();
    assert_readable("12 blocks", &graph, true);
    let svg = picture::to_svg(&graph, Level::Layers);
    let titles: BTreeSet<&str> = seen(&svg).iter().map(|own| own.texts[0]).collect();
    for at in 1..=12 {
        assert!(titles.contains(&*format!("block_{at}.attention")), "{at} in {titles:?}");
    }
}

/// A box of a picture: its left edge, its top, and its texts.
struct Seen<'a> {
    x: f64,
    y: f64,
    texts: Vec<&'a str>,
}

fn number(element: &str, name: &str) -> f64 {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}

fn seen(svg: &str) -> Vec<Seen<'_>> {
    let boxes = svg.split("<g class=\"b\"").skip(1);
    let seen = boxes.map(|own| {
        let own = own.split_once("</g>").unwrap().0;
        let texts = own.split("<text").skip(1);
        let texts = texts.map(|text| text.split_once('>').unwrap().1.split_once('<').unwrap().0);
        Seen { x: number(own, "x"), y: number(own, "y"), texts: texts.collect() }
    });
    seen.collect()
}

/// How far below or above the nearest box of its layer each box of gradients stands. Layers have a
/// number at their end, which no operator has.
fn distances(svg: &str) -> Vec<(f64, String)> {
    let label = |what: &str| svg.lines().find(|line| line.contains(what)).unwrap();
    let gradients = label(" · gradients ↑</text>");
    let (left, top) = (number(gradients, "x") - 10.0, number(gradients, "y"));
    let end = number(label("cpu:0 · outputs</text>"), "y");
    let boxes = seen(svg).into_iter().filter(|own| (top..end).contains(&own.y));
    let (up, down): (Vec<_>, Vec<_>) = boxes.partition(|own| own.x > left);
    let is_layer = |text: &str| {
        let number = text.rsplit_once('_').map_or("", |(_, number)| number);
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let nearest = |own: &Seen<'_>| {
        let layers: Vec<_> = own.texts.iter().filter(|text| is_layer(text)).collect();
        let of = |other: &&Seen<'_>| layers.iter().any(|layer| other.texts.contains(layer));
        let far = down.iter().filter(of).map(|other| (other.y - own.y).abs());
        far.reduce(f64::min).map(|far| (far, own.texts.join(", ")))
    };
    up.iter().filter_map(nearest).collect()
}

#[test]
fn gradients_are_beside_what_they_are_of() {
    let mut updates = Vec::new();
    for weights in ["template", "mirrored"] {
        let svg = picture::to_svg(&step_on_four(&["--weights", weights]), Level::Layers);
        let distances = distances(&svg);
        // A layer of several boxes has one of them beside its gradients, or one in the rows next
        // to them; two rows are about 160 pixels high.
        let far: Vec<_> = distances.iter().filter(|(far, _)| *far > 200.0).collect();
        assert!(distances.len() > 60 && far.is_empty(), "{weights}: {far:?}");
        // The height is about 6,300 pixels; the bound leaves room for a few rows more.
        let height = number(&svg, "height");
        assert!(height < 7000.0, "{weights}: {height} pixels");
        // An exchange is one box, and so is what the parameters become.
        assert!(svg.contains("gpu:0 … gpu:3 ×4 · gradients ↑"), "{weights}");
        assert_eq!(svg.matches(">new parameters<").count(), 1, "{weights}");
        assert!(!svg.contains("moments.r0.h") && !svg.contains(".d0"), "{weights}");
        // All devices do the same, and the host nothing among them.
        assert!(!svg.contains("gpu:1") && !svg.contains("cpu:0 · forward"), "{weights}");
        let seen = seen(&svg);
        let told = seen.iter().flat_map(|own| &own.texts).filter(|t| t.starts_with("→ updates "));
        updates.push(told.map(|text| (*text).to_owned()).collect::<BTreeSet<_>>());
    }
    assert_eq!(updates[0], updates[1]);
}

/// Copies stand in the order of the outputs that are merged of them.
#[test]
fn copies_stand_as_outputs_do() {
    let bert = replicas("tests/models/exported/torch_dynamo_bert.onnx", "3");
    let svg = picture::to_svg(&bert, Level::Layers);
    let boxes = seen(&svg);
    let x = |texts: &[&str]| {
        let found: Vec<f64> = boxes.iter().filter(|b| b.texts == texts).map(|b| b.x).collect();
        assert_eq!(found.len(), 1, "{texts:?}");
        found[0]
    };
    assert!(x(&["tanh"]) < x(&["add_3"]));
    assert!(x(&["copy ×3", "tanh"]) < x(&["copy ×3", "add_3"]));
}

/// Checks every model of the zoo on three devices, and a step of training, each at some numbers of
/// rows.
fn on_models(check: impl Fn(&str, &Graph, i64)) {
    for entry in zoo::names() {
        let graph = replicas(&format!("zoo:{entry}"), "3");
        check(entry, &graph, 32);
        check(entry, &graph, 2);
    }
    check("a step", &step_on_four(&[]), 32);
}

#[test]
fn regions_and_their_names_are_in_their_places() {
    on_models(|name, graph, rows| {
        for kernels in [&CPU as &dyn Kernels, &CUDA] {
            let program = program(graph, kernels);
            let bound = program.bind(rows).unwrap();
            let faults = lower::picture::memory(&program, &bound).faults();
            assert!(faults.is_empty(), "{name} at {rows} rows: {:#?}", &faults[..1]);
        }
    });
}

#[test]
fn plans_are_drawn_in_their_order() {
    on_models(|name, graph, rows| {
        for kernels in [&CPU as &dyn Kernels, &CUDA] {
            let program = program(graph, kernels);
            let bound = program.bind(rows).unwrap();
            let chart = lower::picture::timeline::plan(&program, &bound);
            let faults = chart.faults();
            assert!(faults.is_empty(), "{name} at {rows} rows: {:#?}", &faults[..1]);
            let devices = program.devices.iter().zip(&bound.devices);
            let works = |action: &Action| matches!(action, Action::Launch(_) | Action::Copy { .. });
            let steps = devices.flat_map(|(device, own)| device.steps.iter().zip(&own.active));
            let alone =
                |step: &lower::Step, active: bool| active && works(&step.action) && !step.beside;
            let expected = steps.filter(|(step, active)| alone(step, **active)).count();
            let bars = &chart.panels[0].bars;
            assert_eq!(bars.iter().filter(|bar| bar.look.0 != "wait").count(), expected);
        }
    });
}

#[test]
fn what_waits_is_drawn_behind_what_it_waits_for() {
    let program = program(&replicas("zoo:mlp", "2"), &CPU);
    let chart = lower::picture::timeline::plan(&program, &program.bind(4).unwrap());
    let bars = &chart.panels[0].bars;
    let at = |name: &str| bars.iter().find(|bar| bar.label == name).unwrap();
    let merge = bars.iter().filter(|bar| bar.low < 1.0).map(|bar| bar.from).fold(0.0, f64::max);
    assert!(bars.iter().filter(|bar| bar.low > 1.0).all(|bar| bar.to <= merge), "the host merges");
    assert!(bars.iter().any(|bar| bar.look.0 == "wait" && bar.low < 1.0));
    assert!(at("wait").to > at("wait").from);
    let tells = &at("wait").tells;
    assert!(tells.starts_with("wait: for ") && tells.contains(" on gpu:"), "{tells}");
}

#[test]
fn a_picture_of_memory_has_the_numbers_of_the_plan() {
    let program = program(&replicas("zoo:xception", "8"), &CPU);
    let bound = program.bind(64).unwrap();
    let chart = lower::picture::memory(&program, &bound);
    let equal = &chart.panels[chart.panels.len() - 1];
    assert_eq!(equal.title, "gpu:0 … gpu:7 ×8");
    let most = equal.bars.iter().map(|bar| bar.high).fold(0.0, f64::max);
    assert!((most - bound.devices[1].planned as f64).abs() < 0.5);
    let (at, peak) = equal.mark.as_ref().unwrap();
    let live = |bar: &&picture::chart::Bar| bar.from < *at && *at < bar.to;
    let live: f64 = equal.bars.iter().filter(live).map(|bar| bar.high - bar.low).sum();
    assert!((live - bound.devices[1].live as f64).abs() < 0.5);
    assert!(peak.starts_with("peak: ") && peak.contains("MiB"), "{peak}");
    let legend: Vec<&str> = chart.legend.iter().map(|look| look.0).collect();
    assert_eq!(legend, ["compute", "copy"]);
    // The last device has more rows than the others.
    let bound = program.bind(65).unwrap();
    let chart = lower::picture::memory(&program, &bound);
    let titles: Vec<&str> = chart.panels.iter().map(|panel| &*panel.title).collect();
    assert_eq!(titles[titles.len() - 2..], ["gpu:0 … gpu:6 ×7", "gpu:7"]);
    let svg = chart.to_svg();
    assert!(svg.contains(">gpu:7</text>") && svg.contains(" MiB</text>"), "{}", &svg[..400]);
}

#[test]
fn equal_replicas_are_folded() {
    let svg = picture::to_svg(&replicas("zoo:xception", "8"), Level::Layers);
    assert!(svg.contains("gpu:0 … gpu:7 ×8"), "{}", &svg[..400]);
    assert!(!svg.contains(">gpu:1<"));
}

#[test]
fn folded_texts_of_all_models_read_back() {
    let check = |name: &str, graph: &Graph| {
        let text = graph.to_string();
        let short = ir::folded(&text);
        let read = ir::parse(&short).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(read.to_string() == text, "{name}");
        short.len() as f64 / text.len() as f64
    };
    for entry in zoo::names() {
        for gpus in ["2", "8"] {
            let graph = replicas(&format!("zoo:{entry}"), gpus);
            let part = check(entry, &graph);
            let most = if gpus == "2" { 1.0 } else { 0.8 };
            assert!(part <= most, "{entry} on {gpus}: {part}");
        }
    }
    check("a step", &step_on_four(&[]));
}

#[test]
fn graphviz_gets_the_same_replicas() {
    let dot = ir::to_dot(&replicas("zoo:xception", "8"));
    assert!(
        dot.contains("label=\"gpu:0 … gpu:7 ×8\\nN/8 rows, the last N-7*(N/8) rows\""),
        "{dot}"
    );
    assert!(!dot.contains(".r1") && dot.contains("copy ×8"));
    // Every edge is between nodes that are drawn.
    let labelled: Vec<&str> =
        dot.lines().filter_map(|line| Some(line.trim().split_once(" [label=")?.0)).collect();
    let named: HashSet<&str> = labelled.iter().copied().collect();
    let ends: Vec<_> = labelled.iter().filter_map(|line| line.split_once(" -> ")).collect();
    assert!(ends.len() > 100 && ends.iter().all(|(a, b)| named.contains(a) && named.contains(b)));
    // Unequal replicas stand beside each other.
    let args = args(&["zoo:two_head", "--gpus", "3", "--merge", "gpu"]);
    let model = args.model.load_open().unwrap();
    let graph = args.replicate.apply(&args.model, &model.graph, args.place()).unwrap().graph;
    let dot = ir::to_dot(&graph);
    let at = |text: &str| dot.find(text).unwrap_or_else(|| panic!("{text} in {dot}"));
    let lanes = [at("cpu:0 · inputs"), at("label=\"gpu:0\\n"), at("gpu:1 … gpu:2 ×2")];
    assert!(lanes.is_sorted() && lanes[2] < at("cpu:0 · outputs") && dot.contains("rank=same; n"));
}

#[test]
fn names_of_a_file_end_nothing() {
    let name = "</script><script>alert(\"1\")</script>'&\u{1}]]>";
    let mut b = Builder::new(name);
    let x = b.input(name, "f32[N,2]".parse().unwrap());
    let y = b.op("y", Unary::Relu, &[x]).unwrap();
    b.output(name, y);
    let (graph, _) = b.finish();
    let claims: Claims = [("y".to_owned(), name.to_owned())].into();
    let svg = picture::to_svg(&graph, Level::Operators);
    let html = picture::to_html(&graph, Level::Layers, &claims);
    assert!(!svg.contains("<script") && !svg.contains('\u{1}'), "{svg}");
    assert_eq!(html.matches("<script").count(), 2);
    assert!(!html.contains("alert(\"1") && !html.contains('\u{1}'));
}
