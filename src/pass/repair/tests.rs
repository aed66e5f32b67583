use super::{Action, Outcome, Repair, RepairOptions, Writer, repair};
use crate::analysis::survey;
use crate::ir::parse;
use crate::types::{Code, Combine};

const TEXT: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,4]) -> (y: f32[N,4], l: f32[1,4], p: f32[N,4]) {
  %m : f32[1,4] = reduce_mean(%x) {axes=[0], keepdims=true}
  %y : f32[N,4] = sub(%x, %m)
  %l : f32[1,4] = relu(%m)
  %r : i64[N] = range() {limit=N}
  %c : i64[N,1] = reshape(%r) {shape=[N, 1]}
  %f : f32[N,1] = cast(%c) {to=f32}
  %p : f32[N,4] = add(%x, %f)
  return %y, %l, %p
}
";

#[test]
fn repairs_are_made_as_far_as_they_are_allowed() {
    let graph = parse(TEXT).unwrap();
    let left = |allowed| {
        let Outcome { graph: repaired, done, .. } =
            repair(&graph, RepairOptions::new(allowed)).unwrap();
        let refused = survey(&repaired).unwrap().refused().len();
        (refused, done.into_iter().map(|r| (r.label, r.action)).collect::<Vec<_>>())
    };
    assert_eq!(left(Repair::None), (3, vec![]));
    let rows = ("p".to_owned(), Action::OwnRows);
    assert_eq!(left(Repair::Local), (2, vec![rows.clone()]));
    // The mean is combined once for all that needs it.
    let mean = ("m".to_owned(), Action::AllReduce(Combine::WideSum));
    assert_eq!(left(Repair::Comm), (0, vec![mean, rows]));
}

#[test]
fn what_rows_before_give_is_computed_for_one_operator_alone() {
    let text = "fanwise 1
symbol N >= 0
graph @g(%x: i64[N,4], %z: i64[N,4]) -> (y: i64[N,4]) {
  %t : i64[1,4] = reduce_sum(%x) {axes=[0], keepdims=true}
  %p : i64[1,4] = exclusive_scan(%t) {by=sum, rows=[N]}
  %y : i64[N,4] = cumsum(%x, %p) {axis=0}
  return %y
}
";
    let refused = |text: &str| {
        let map = survey(&parse(text).unwrap()).unwrap();
        map.refused().iter().map(|r| r.refusal.code.name()).collect::<Vec<_>>()
    };
    assert!(refused(text).is_empty());
    // The sums of other rows, in the other direction, of the other kind; what each replica holds as
    // an output.
    for (from, to) in [
        ("reduce_sum(%x)", "reduce_sum(%z)"),
        ("by=sum, rows", "by=sum, reverse=true, rows"),
        ("cumsum(%x, %p)", "cumprod(%x, %p)"),
        ("cumsum(%x, %p)", "cumsum(%z, %p)"),
        ("cumsum(%x, %p) {axis=0}", "add(%x, %p)"),
    ] {
        assert_eq!(refused(&text.replace(from, to)), ["R0111"], "{from}: {to}");
    }
    let output = text.replace("-> (y: i64[N,4])", "-> (y: i64[N,4], p: i64[1,4])");
    assert_eq!(refused(&output.replace("return %y", "return %y, %p")), ["R0111"]);
    let graph = parse(text).unwrap();
    let Outcome { graph: repaired, done, .. } = repair(&graph, Repair::Comm.into()).unwrap();
    assert!(done.is_empty() && *repaired == graph);
    let plain = "fanwise 1
symbol N >= 0
graph @g(%x: i64[N,4]) -> (y: i64[N,4]) {
  %y : i64[N,4] = cumsum(%x) {axis=0}
  return %y
}
";
    let plain = parse(plain).unwrap();
    let Outcome { done, .. } = repair(&plain, Repair::Comm.into()).unwrap();
    let scan = &done[0];
    assert_eq!(scan.action, Action::ExclusiveScan(Combine::Sum));
    assert_eq!(scan.bytes, 32.into(), "the totals alone");
}

#[test]
fn what_needs_no_repair_stays_itself() {
    let text = TEXT.replace("sub(%x, %m)", "relu(%x)").replace("relu(%m)", "neg(%m)");
    let text = text.replace("reduce_mean", "reduce_max");
    let graph = parse(&text.replace("add(%x, %f)", "add(%x, %x)")).unwrap();
    for allowed in [Repair::None, Repair::Local, Repair::Comm] {
        let Outcome { graph: same, done, .. } =
            repair(&graph, RepairOptions::new(allowed)).unwrap();
        assert!(*same == graph && done.is_empty());
    }
}

#[test]
#[should_panic(expected = "that a node is written after those that it takes values of")]
fn a_node_that_is_not_written_is_no_other_one() {
    let graph = parse(TEXT).unwrap();
    let order = graph.order().unwrap();
    let options = RepairOptions::new(Repair::Comm);
    let writer = Writer::new(&graph, &order, graph.node_map(false), options);
    writer.new_value(graph.outputs()[0].value);
}

/// A normalisation, its gradients, and a second normalisation of the same value.
const NORMALISED: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,3,2], %dy: f32[N,3,2], %s: f32[3], %b: f32[3]) -> (y: f32[N,3,2], m: f32[3], \
v: f32[3], z: f32[N,3,2], dx: f32[N,3,2], ds: f32[3], db: f32[3]) {
  %y : f32[N,3,2], %m : f32[3], %v : f32[3] = batch_norm_train(%x, %s, %b, %s, %b)
  %z : f32[N,3,2], %o : f32[3], %p : f32[3] = batch_norm_train(%x, %b, %s, %s, %b)
  %dx : f32[N,3,2], %ds : f32[3], %db : f32[3] = batch_norm_train_grad(%x, %s, %dy)
  return %y, %m, %v, %z, %dx, %ds, %db
}
";

#[test]
fn statistics_are_exchanged_once_in_each_direction() {
    let graph = parse(NORMALISED).unwrap();
    let Outcome { graph: repaired, done, .. } = repair(&graph, Repair::Comm.into()).unwrap();
    assert!(survey(&repaired).unwrap().refused().is_empty());
    let exchanged = repaired.ids().filter_map(|id| repaired.node(id).op()?.combines());
    assert_eq!(exchanged.collect::<Vec<_>>(), [Combine::Moments, Combine::Sum], "{repaired}");
    let bytes = |by| done.iter().find(|r| r.action == Action::AllReduce(by)).unwrap().bytes.clone();
    assert_eq!(bytes(Combine::Moments), 96.into(), "four numbers for each of three channels");
    assert_eq!(bytes(Combine::Sum), 48.into());
    assert!(done.iter().all(|r| r.code == Code::BatchStatistics), "{done:?}");
}
