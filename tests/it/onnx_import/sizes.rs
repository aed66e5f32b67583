//! Sizes that exporters compute: through floats, with bounds, and as repeats.

use fanwise::Session;
use fanwise::types::Tensor;

use super::*;

/// The nodes of `text`; each `Cast` is to the type that its result's name begins with, `f32`, `f64`
/// or `i64`, each `Concat` along axis 0.
pub(super) fn typed_nodes(text: &str) -> Vec<NodeProto> {
    let mut nodes = nodes_of(text);
    for node in nodes.iter_mut().filter(|node| node.op_type() == "Cast") {
        let to = match node.output[0].as_bytes()[0] {
            b'f' => DataType::Float,
            b'd' => DataType::Double,
            _ => DataType::Int64,
        };
        node.attribute.push(int("to", to as i64));
    }
    for node in nodes.iter_mut().filter(|node| node.op_type() == "Concat") {
        node.attribute.push(int("axis", 0));
    }
    nodes
}

fn scalar(name: &str, x: i64) -> TensorProto {
    TensorProto { dims: Vec::new(), ..ints(name, &[x]) }
}

/// The model of `x: f32[N,7]`, with the numbers that its nodes name.
fn model_of(text: &str) -> Model {
    let mut known = vec![
        scalar("zero", 0),
        scalar("one", 1),
        scalar("four", 4),
        floats("f0", &[], &[0.0]),
        floats("f1", &[], &[1.0]),
        floats("f2", &[], &[2.0]),
        floats("row", &[1, 7], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    ];
    let lists: [(&str, &[i64]); 8] = [
        ("first", &[0]),
        ("second", &[1]),
        ("last", &[-1]),
        ("two", &[2]),
        ("seven", &[7]),
        ("far", &[1_000_000_000]),
        ("none", &[0]),
        ("both", &[0, 1]),
    ];
    known.extend(lists.map(|(name, list)| ints(name, list)));
    known.push(floats("scales", &[2], &[1.0, 1.5]));
    let nodes = typed_nodes(&format!("sizes = Shape x; {text}"));
    load(&model(graph(vec![value("x", &["N", "7"])], known, nodes, &["y"])))
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn sizes_stay_known_through_floats() {
    // From the batch or the width, a number for an axis.
    let of = |from: &str, how: &str, then: &str| {
        format!(
            "l = Gather sizes {from}; fl = Cast l; {how}; i = Cast c; e = Unsqueeze i first; {then}"
        )
    };
    let cut = "y = Slice x first e second second";
    let fill = "y = Expand f0 e";
    for (text, ty) in [
        (of("one", "h = Div fl f2; c = Ceil h", cut), "f32[N,4]"),
        (of("one", "h = Div fl f2; c = Floor h", cut), "f32[N,3]"),
        (of("one", "h = Div fl f2; c = Round h", cut), "f32[N,4]"),
        (of("one", "c = Div fl f2", cut), "f32[N,3]"),
        (of("one", "c = Sqrt fl", cut), "f32[N,2]"),
        (of("one", "c = Min fl f2", cut), "f32[N,2]"),
        (of("one", "c = Clip fl f1 f2", cut), "f32[N,2]"),
        (of("zero", "h = Div fl f2; c = Ceil h", fill), "f32[N-(N/2)]"),
        (of("zero", "h = Div fl f2; c = Floor h", fill), "f32[N/2]"),
        (of("zero", "h = Mul fl f2; c = Div h f2", fill), "f32[N]"),
        (of("zero", "h = Add fl f1; c = Max h f2", fill), "f32[max(2,N+1)]"),
        (of("zero", "h = Neg fl; c = Neg h", fill), "f32[N]"),
        (
            "f = Cast sizes; m = Mul f scales; c = Floor m; i = Cast c; y = Expand f0 i".into(),
            "f32[N,10]",
        ),
        (
            "l = Gather sizes one; c = Clip l one four; e = Unsqueeze c first; ".to_owned() + cut,
            "f32[N,4]",
        ),
        ("l = Gather sizes one; fl = Cast l; r = Range f0 fl f1; y = Add x r".into(), "f32[N,7]"),
        ("l = Gather sizes zero; fl = Cast l; r = Range f0 fl f1; y = Mul r f2".into(), "f32[N]"),
    ] {
        let model = model_of(&text);
        assert_eq!(outputs(&model), ty, "{text}");
    }
}

/// The outputs of `text` on `rows` rows of `x`, whose elements count from 0.
fn run(text: &str, rows: usize, gpus: u32) -> Tensor {
    let session = Session::builder(model_of(text)).gpus(gpus).build();
    let session = session.unwrap_or_else(|e| panic!("{text}: {e}"));
    let elements: Vec<f32> = (0u16..).take(rows * 7).map(f32::from).collect();
    let x = Tensor::new(&[rows, 7], &elements).unwrap();
    session.run([("x", x)]).unwrap()["y"].clone()
}

#[test]
fn what_sizes_decide_is_that_of_the_file() {
    let row = |rows: usize, f: &dyn Fn(usize, usize) -> usize| {
        let all = (0..rows * 7).map(|i| u16::try_from(f(i / 7, i % 7)).unwrap());
        Tensor::new(&[rows, 7], &all.map(f32::from).collect::<Vec<_>>()).unwrap()
    };
    for rows in 0..6 {
        for gpus in [1, 3] {
            // To the end of the batch, in exporters' words.
            let y = run("y = Slice x first far none second", rows, gpus);
            assert_eq!(y, row(rows, &|i, k| i * 7 + k), "{rows} rows on {gpus}");
            let repeats = "l = Gather sizes first; r = Concat l second; t = Tile row r";
            let y = run(&format!("{repeats}; y = Add x t"), rows, gpus);
            assert_eq!(y, row(rows, &|i, k| i * 7 + 2 * k), "{rows} rows on {gpus}");
            let y = run("u = Unsqueeze x both; y = Squeeze u", rows, gpus);
            assert_eq!(y, row(rows, &|i, k| i * 7 + k), "{rows} rows on {gpus}");
            let half = "l = Gather sizes one; f = Cast l; h = Div f f2; i = Cast h";
            let cut = "e = Unsqueeze i first; s = Slice x first e second second";
            let y = run(&format!("{half}; {cut}; y = Identity s"), rows, gpus);
            assert_eq!(y.dims(), [rows, 3]);
        }
    }
}

#[test]
fn what_is_not_exact_is_refused() {
    // Half floats count no further than 2048, and a share of the batch may have either sign.
    let text = "l = Gather sizes zero; fl = Cast l; h = Sub fl f2; d = Div h f2; i = Cast d; \
        e = Unsqueeze i first; y = Expand f0 e";
    let file = |text: &str| {
        let known = vec![scalar("zero", 0), ints("first", &[0]), floats("f0", &[], &[0.0])];
        let two = vec![floats("f2", &[], &[2.0]), floats("tenth", &[], &[0.1])];
        let nodes = typed_nodes(&format!("sizes = Shape x; {text}"));
        model(graph(vec![value("x", &["N", "7"])], [known, two].concat(), nodes, &["y"]))
    };
    let text_of = |text: &str| refusal(load(&file(text)));
    for wrong in [text.to_owned(), text.replace("Sub fl f2", "Mul fl tenth")] {
        let error = text_of(&wrong);
        assert!(error.contains("(Expand)") && error.contains("must be known"), "{error}");
    }
}
