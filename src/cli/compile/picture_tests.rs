use clap::Parser;

use super::{CompileArgs, training};
use crate::ir::picture::{self, Claims, Level};
use crate::ir::{Builder, Graph};
use crate::op::Unary;
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

fn replicas(model: &str, gpus: &str) -> Graph {
    let args = args(&[model, "--gpus", gpus]);
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

#[test]
fn boxes_and_labels_do_not_overlap() {
    for entry in zoo::names() {
        assert_readable(entry, &replicas(&format!("zoo:{entry}"), "3"), true);
    }
    assert_readable("xception", &replicas("zoo:xception", "8"), true);
    let step = args(&["zoo:mini_googlenet", "--gpus", "4", "--loss", "categorical-crossentropy"]);
    assert_readable("a step", &training(&step).unwrap().0, false);
}

#[test]
fn equal_replicas_are_folded() {
    let svg = picture::to_svg(&replicas("zoo:xception", "8"), Level::Layers);
    assert!(svg.contains("gpu:0 … gpu:7 ×8"), "{}", &svg[..400]);
    assert!(!svg.contains(">gpu:1<"));
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
