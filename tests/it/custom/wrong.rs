//! What a framework's operator does wrong is an error that names it, where it can be seen.

use fanwise::ir::{self, Builder, Weights};
use fanwise::model::{self, LoadOptions};
use fanwise::op::{
    Attr, Custom, CustomOp, CustomOps, GradientBuilder, Reduce, RuleError, Sharding, Term,
};
use fanwise::pass::{self, Repair, Replicate, differentiate};
use fanwise::types::{Combine, DType, Device, Dim, Tensor, TensorType};

use super::{Eval, Infer, Made, SAME, Split, graph, outputs};

const ROWS: Sharding = Sharding::Rows { axis: 0 };

fn numbers(rows: usize) -> Tensor {
    let numbers: Vec<f32> = (0..rows).map(|i| i as f32).collect();
    Tensor::new(&[rows], &numbers).unwrap()
}

#[test]
fn a_wrong_kernel_ends_the_run() {
    let kernels: [(Eval, &str); 5] = [
        (|_| Err("no\u{1b}licence".to_owned()), "failed: no\\u{1b}licence"),
        (|_| panic!("a bug of the framework"), "failed: it panics: a bug of the framework"),
        (|_| Ok(Vec::new()), "gave 0 results, not 1"),
        (|_| Ok(vec![Tensor::scalar(1.0f32)]), "gave f32[] as result 0, which must be f32["),
        (|x| Ok(vec![Tensor::zeros(DType::F64, x[0].dims()).unwrap()]), "gave f64["),
    ];
    for (eval, reason) in kernels {
        let one = graph(Made { eval, ..SAME }, "f32[N]").unwrap();
        let devices = Replicate::over((0..3).map(Device::gpu).collect());
        let three = pass::replicate(&one, &devices).unwrap();
        for graph in [one, three] {
            let error = outputs(&graph, &Weights::default(), &numbers(5)).unwrap_err();
            assert!(error.contains("`com.acme.Same`") && error.contains(reason), "{error}");
        }
    }
    let eval = |x: &[&Tensor]| {
        Ok(vec![Tensor::new(x[0].dims(), &[2u8, 1]).unwrap().reinterpreted(DType::Bool)])
    };
    let truths = graph(Made { eval, ..SAME }, "bool[N]").unwrap();
    let x = Tensor::zeros(DType::Bool, &[2]).unwrap();
    let error = outputs(&truths, &Weights::default(), &x).unwrap_err();
    assert!(error.contains("gave a truth value beyond 0 and 1 in result 0"), "{error}");
}

#[test]
fn wrong_types_are_refused() {
    let types: [(Infer, &str); 5] = [
        (|_| Err("no such channels".to_owned()), "does not take its operands: no such channels"),
        (|_| panic!("out of bounds"), "does not take its operands: it panics: out of bounds"),
        (|_| Ok(Vec::new()), "has no results"),
        (|_| Ok(vec!["f32[N-1]".parse().unwrap()]), "f32[N-1] is not a possible size"),
        (
            |_| Ok(vec![TensorType::new(DType::F32, [1usize; 65].as_slice())]),
            "is not a possible size",
        ),
    ];
    for (infer, reason) in types {
        let error = graph(Made { infer, ..SAME }, "f32[N]").unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    for name in ["same", "com.acme.Same Same", "com.acme.Sämes", ""] {
        let error = graph(Made { name, ..SAME }, "f32[N]").unwrap_err();
        assert!(error.contains("is not named with a dot between words"), "{error}");
    }
}

/// An operator with these attributes.
struct Attributes(Vec<(&'static str, Attr)>);

impl CustomOp for Attributes {
    fn name(&self) -> &'static str {
        "com.acme.Attributes"
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.0.clone()
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        (SAME.infer)(operands)
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        (SAME.split)(operands)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        (SAME.eval)(operands)
    }
}

#[test]
fn attributes_are_constants_with_names() {
    let cases = [
        (vec![("rows", Attr::Int(Dim::n()))], "an attribute `rows` that is not a constant"),
        (vec![("rows", Attr::Ints(vec![Dim::n()]))], "an attribute `rows` that is not a constant"),
        (vec![("a b", Attr::Bool(true))], "an attribute whose name \"a b\" is not a word"),
        (vec![("a", Attr::Bool(true)), ("a", Attr::Bool(true))], "has two attributes `a`"),
    ];
    for (attrs, reason) in cases {
        let error = graph(Attributes(attrs), "f32[N]").unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_wrong_split_rule_is_refused_where_it_can_be_seen() {
    let rules: [(Split, &str, &str); 9] = [
        (|_| Err("it sorts".to_owned()), "R0105", "has no split rule for this: it sorts"),
        (|_| panic!("a bug"), "R0199", "has no split rule: it panics: a bug"),
        (|_| Ok(Vec::new()), "R0199", "has a split rule for 0 results, and 1 results"),
        (|_| Ok(vec![Sharding::Rows { axis: 7 }]), "R0199", "which has no such axis"),
        (|_| Ok(vec![Sharding::Rows { axis: 1 }]), "R0110", "no entry there for each row"),
        (|_| Ok(vec![Sharding::Whole]), "R0110", "though its size depends on the batch"),
        (
            |_| Ok(vec![Sharding::Partial(Combine::Sum)]),
            "R0110",
            "though its size depends on the batch",
        ),
        (|_| Ok(vec![Sharding::Rows { axis: usize::MAX }]), "R0199", "which has no such axis"),
        (
            |_| Ok(vec![Sharding::Partial(Combine::WideSum)]),
            "R0110",
            "though its size depends on the batch",
        ),
    ];
    let devices = Replicate::over((0..2).map(Device::gpu).collect());
    for (split, code, reason) in rules {
        let graph = graph(Made { split, ..SAME }, "f32[N,3]").unwrap();
        let error = pass::replicate(&graph, &devices).unwrap_err().to_string();
        assert!(error.contains(code) && error.contains(reason), "{error}");
    }
    for (by, ty) in
        [(Combine::WideSum, "f32[]"), (Combine::Mean, "i64[]"), (Combine::Sum, "bool[]")]
    {
        let op = Parts { by, ty: ty.parse().unwrap() };
        let error = pass::replicate(&graph(op, "f32[N]").unwrap(), &devices).unwrap_err();
        assert!(error.to_string().contains("which do not combine"), "{error}");
    }
}

/// An operator whose only result is said to be partial.
struct Parts {
    by: Combine,
    ty: TensorType,
}

impl CustomOp for Parts {
    fn name(&self) -> &'static str {
        "com.acme.Parts"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![self.ty.clone()])
    }

    fn split(&self, _: &[Sharding]) -> Result<Vec<Sharding>, String> {
        Ok(vec![Sharding::Partial(self.by)])
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        Ok(vec![Tensor::scalar(operands[0].as_slice::<f32>().iter().sum::<f32>())])
    }
}

#[test]
fn a_wrong_split_rule_is_found_by_executing_it() {
    let x = numbers(7);
    let check = |op: Custom| op.check_split(&[(&x, ROWS)]);
    check(Custom::new(SAME)).unwrap();
    // The sum of the rows so far.
    let eval = |x: &[&Tensor]| {
        let mut y = x[0].clone();
        let mut sum = 0.0;
        y.as_mut_slice::<f32>().iter_mut().for_each(|v| {
            sum += *v;
            *v = sum;
        });
        Ok(vec![y])
    };
    let error = check(Custom::new(Made { eval, ..SAME })).unwrap_err();
    assert!(error.contains("says shard(0) of result 0; 2 replicas of 7 rows give"), "{error}");
    let sums = |by| Custom::new(Parts { by, ty: "f32[]".parse().unwrap() });
    check(sums(Combine::Sum)).unwrap();
    let error = check(sums(Combine::Max)).unwrap_err();
    assert!(error.contains("says partial(max) of result 0"), "{error}");
    let infer = |_: &[TensorType]| Ok(vec!["f32[5]".parse().unwrap()]);
    assert!(check(Custom::new(Made { infer, ..SAME })).is_err());
    let same = Custom::new(SAME);
    for operand in [Sharding::Whole, Sharding::Partial(Combine::Sum), Sharding::Rows { axis: 1 }] {
        same.check_split(&[(&x, operand)]).unwrap_err();
    }
    same.check_split(&[(&x, ROWS), (&numbers(6), ROWS)]).unwrap_err();
}

#[test]
fn parts_are_combined_before_an_operator_that_says_nothing_of_them() {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N]".parse().unwrap());
    let sum = b.op("sum", Parts { by: Combine::Sum, ty: "f32[]".parse().unwrap() }, &[x]).unwrap();
    let y = b.op("y", SAME, &[sum]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    let devices = Replicate::over((0..3).map(Device::gpu).collect());
    let error = pass::replicate(&graph, &devices).unwrap_err().to_string();
    assert!(error.contains("R0111") && error.contains("uses the sum over all samples"), "{error}");
    let replicas = pass::replicate(&graph, &Replicate { repair: Repair::Comm, ..devices }).unwrap();
    let text = replicas.to_string();
    let [combined, used] = ["all_reduce(", "com.acme.Same("].map(|op| text.find(op).unwrap());
    assert!(combined < used, "{text}");
    let found = outputs(&replicas, &weights, &numbers(5)).unwrap();
    assert_eq!(found, [Tensor::scalar(10.0f32)]);
}

#[test]
fn rows_that_differ_in_their_entries_are_refused() {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N]".parse().unwrap());
    let long = b.input("long", "f32[2*N]".parse().unwrap());
    let names = ["y", "z"];
    for (name, y) in names.into_iter().zip(b.ops(&names, SAME, &[x, long]).unwrap()) {
        b.output(name, y);
    }
    let (both, _) = b.finish();
    let devices = Replicate::over((0..2).map(Device::gpu).collect());
    let error = pass::replicate(&both, &devices).unwrap_err().to_string();
    assert!(error.contains("R0101") && error.contains("different numbers of entries"), "{error}");
    // By itself each of them is split.
    let replicas = pass::replicate(&graph(SAME, "f32[2*N]").unwrap(), &devices).unwrap();
    let found = outputs(&replicas, &Weights::default(), &numbers(6)).unwrap();
    assert_eq!(found, [numbers(6)]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let text = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N]) -> (y: f32[N]) {\n  \
                %y : f32[N] = com.acme.Scale(%x) {by=0.5}\n  return %y\n}\n";
    let read = |text: &str, ops: &CustomOps| ir::parse_with(text, ops).unwrap_err().to_string();
    let none = ir::parse(text).unwrap_err().to_string();
    assert!(none.contains("the custom operator `com.acme.Scale` is not registered"), "{none}");
    assert!(none.contains("= help: its framework gives it to `ir::parse_with`"), "{none}");
    let scale = |name: &'static str| {
        CustomOps::default().with(name, move |attrs| {
            let by: f64 = attrs.take("by", None)?;
            assert!(by >= 0.0, "by what?");
            Ok(Attributes(vec![("by", Attr::Float(by))]))
        })
    };
    let error = read(text, &scale("com.acme.Scales"));
    assert!(error.contains("did you mean `com.acme.Scales`?"), "{error}");
    let ops = scale("com.acme.Scale");
    let error = read(text, &ops);
    assert!(error.contains("`com.acme.Scale`: it is made as `com.acme.Attributes`"), "{error}");
    let json = ir::to_json(&graph(Attributes(vec![("by", Attr::Float(0.5))]), "f32[N]").unwrap());
    let error = ir::from_json(&json).unwrap_err().to_string();
    assert!(error.contains("`com.acme.Attributes` is not registered"), "{error}");
    ir::from_json_with(&json, &scale("com.acme.Attributes")).unwrap();
    for (attrs, reason) in [
        ("", "`com.acme.Scale` needs the attribute `by`"),
        ("{by=2}", "the attribute `by` takes a float"),
        ("{by=N}", "the attribute `by` takes a float"),
        ("{by=0.5, at=1}", "`com.acme.Scale` has no attribute `at`"),
        ("{by=-0.5}", "it panics: by what?"),
    ] {
        let error = read(&text.replace("{by=0.5}", attrs), &ops);
        assert!(error.contains(reason), "{error}");
    }
}

type Rule = fn(&mut GradientBuilder<'_, '_>) -> Result<Vec<Option<Term>>, RuleError>;

/// An operator with a gradient.
struct Learned(Rule);

impl CustomOp for Learned {
    fn name(&self) -> &'static str {
        "com.acme.Learned"
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(operands[..1].to_vec())
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        Ok(operands[..1].to_vec())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        Ok(vec![operands[0].clone()])
    }

    fn backward(&self, at: &mut GradientBuilder<'_, '_>) -> Result<Vec<Option<Term>>, RuleError> {
        (self.0)(at)
    }
}

#[test]
fn a_wrong_gradient_is_refused() {
    let differentiated = |op: Custom| {
        let mut b = Builder::new("g");
        let x = b.input("x", "f32[N]".parse().unwrap());
        let h = b.op("h", op, &[x]).unwrap();
        let loss = Reduce::Sum { axes: vec![0], keepdims: false };
        let loss = b.op("loss", loss, &[h]).unwrap();
        differentiate(&mut b, loss, &[x]).map_err(|e| e.to_string())
    };
    let none = differentiated(Custom::new(SAME)).unwrap_err();
    assert_eq!(none, "`h` (com.acme.Same) has no gradient: the operator declares none");
    let none = differentiated(Custom::new(Learned(|_| Ok(vec![None])))).unwrap();
    assert_eq!(none, [None]);
    let same = differentiated(Custom::new(Learned(|at| Ok(vec![Some(at.dy()?)])))).unwrap();
    assert!(same[0].is_some());
    let wrong: [(Rule, &str); 5] = [
        (|_| Ok(Vec::new()), "gave 0 gradients for 1 operands"),
        (
            |at| {
                let dy = at.dy()?;
                Ok(vec![Some(at.op(Reduce::Sum { axes: vec![0], keepdims: false }, &[dy])?)])
            },
            "gave f32[] as the gradient of operand 0, f32[N]",
        ),
        (|_| panic!("a bug"), "has no gradient: it panics: a bug"),
        (|_| Ok(vec![Some(Term(77))]), "has no gradient: it panics: index out of bounds"),
        (|at| at.operand(7).map(|x| vec![Some(x)]), "an operand is missing"),
    ];
    for (rule, reason) in wrong {
        let error = differentiated(Custom::new(Learned(rule))).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_file_with_an_operator_of_a_framework_is_loaded_where_it_is_registered() {
    let folder = tempfile::tempdir().unwrap();
    let graph = graph(Attributes(vec![("by", Attr::Float(0.5))]), "f32[N]").unwrap();
    let ops = CustomOps::default().with("com.acme.Attributes", |attrs| {
        Ok(Attributes(vec![("by", Attr::Float(attrs.take("by", None)?))]))
    });
    for (name, text) in [("g.fan", graph.to_string()), ("g.json", ir::to_json(&graph))] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let options = LoadOptions { ops: ops.clone(), ..LoadOptions::default() };
        assert_eq!(model::load(&path, &options).unwrap().graph, graph);
        let error = model::load(&path, &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("`com.acme.Attributes` is not registered"), "{error}");
    }
    let file = folder.path().join("g.onnx");
    let error = model::export_onnx(&file, &graph, &Weights::default()).unwrap_err().to_string();
    assert!(error.contains("com.acme.Attributes"), "{error}");
}
