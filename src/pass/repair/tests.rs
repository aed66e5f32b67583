use super::{Action, Repair, repair};
use crate::analysis::survey;
use crate::ir::parse;
use crate::types::Combine;

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
        let (repaired, done) = repair(&graph, allowed).unwrap();
        let refused = survey(&repaired).unwrap().refused().len();
        (refused, done.into_iter().map(|r| (r.label, r.action)).collect::<Vec<_>>())
    };
    assert_eq!(left(Repair::None), (3, vec![]));
    let rows = ("p".to_owned(), Action::OwnRows);
    assert_eq!(left(Repair::Local), (2, vec![rows.clone()]));
    // The mean is combined once for all that needs it.
    let mean = ("m".to_owned(), Action::AllReduce(Combine::Mean));
    assert_eq!(left(Repair::Comm), (0, vec![mean, rows]));
}

#[test]
fn what_needs_no_repair_stays_itself() {
    let text = TEXT.replace("sub(%x, %m)", "relu(%x)").replace("relu(%m)", "neg(%m)");
    let text = text.replace("reduce_mean", "reduce_max");
    let graph = parse(&text.replace("add(%x, %f)", "add(%x, %x)")).unwrap();
    for allowed in [Repair::None, Repair::Local, Repair::Comm] {
        let (same, done) = repair(&graph, allowed).unwrap();
        assert!(*same == graph && done.is_empty());
    }
}
