//! The graphs in the explanations of refusals, and in the book's chapter on claims, behave as the
//! line before each says.

use std::fs;
use std::path::Path;

use fanwise::analysis::prove;
use fanwise::backend::CPU;
use fanwise::backend::Executable as _;
use fanwise::internal::{claims_text, headline};
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::pass::{PassError, Repair, Replicate, explain, repair, replicate};
use fanwise::types::{Code, Device};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::programs::{assert_promised, executable, inputs, run};

/// What the line before a graph says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// Without repairs it is refused, with this code.
    Refused(Code),
    /// Without repairs it is replicated, and computes the same bits.
    Accepted,
    /// With these repairs it is replicated and computes the same, as far as its outputs promise;
    /// with less it is not.
    Repaired(Repair),
}

/// A graph of a text.
struct Example {
    says: Says,
    text: String,
    graph: Graph,
}

/// The graphs of a text. A line `Refused:` means `code`; elsewhere the line has the code in
/// parentheses.
fn examples(name: &str, text: &str, code: Option<Code>) -> Vec<Example> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("```fan\n") {
        let line = text[..at].trim_end().lines().next_back().unwrap_or_default();
        let graph = text[at..].split("```").nth(1).unwrap_or_default();
        let graph = graph.strip_prefix("fan\n").unwrap_or(graph).to_owned();
        let given = line.strip_prefix("Refused (").and_then(|c| c.strip_suffix("):"));
        let says = match line {
            "Accepted:" => Says::Accepted,
            "Repaired (local):" => Says::Repaired(Repair::Local),
            "Repaired (comm):" => Says::Repaired(Repair::Comm),
            "Refused:" => Says::Refused(code.unwrap_or_else(|| panic!("{name}: no code: {graph}"))),
            _ => Says::Refused(given.and_then(|c| c.parse().ok()).unwrap_or_else(|| {
                panic!("{name}: `{line}` does not say what becomes of the graph behind it")
            })),
        };
        let read = parse(&graph).unwrap_or_else(|e| panic!("{name}: {e}\n{graph}"));
        assert_eq!(read.to_string(), graph, "{name}: the text is canonical");
        found.push(Example { says, text: graph, graph: read });
    }
    found
}

/// Three devices, and these repairs.
fn options(repair: Repair) -> Replicate {
    Replicate { repair, ..Replicate::over((0..3).map(Device::gpu).collect()) }
}

/// Checks that the graph is replicated, proved, and gives on three devices what its outputs
/// promise.
fn assert_accepted(name: &str, example: &Example, allowed: Repair) {
    let text = &example.text;
    let template =
        repair(&example.graph, allowed).unwrap_or_else(|e| panic!("{name}: {e}")).into_graph();
    let graph =
        replicate(&template, &options(allowed)).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let verified = verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    prove(&template, &verified).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let weights = Weights::default();
    let [one, three] = [&example.graph, &graph].map(|g| executable(g, &weights, &CPU, 2));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for n in [7, 2, 1] {
        // A batch with too few rows for the model is refused on any number of devices.
        let [few, split] = [&one, &three].map(|e| e.bind(n).is_err());
        assert_eq!(few, split, "{name}, {n} rows: {text}");
        if few {
            continue;
        }
        let inputs = inputs(&example.graph, n, &mut rng);
        let (one, three) = (run(&one, &inputs), run(&three, &inputs));
        assert_promised(&graph, &one, &three, &format!("{name}, {n} rows: {text}"));
    }
}

/// The codes with which the graph is refused.
fn refusals(name: &str, example: &Example, allowed: Repair) -> Vec<Code> {
    match replicate(&example.graph, &options(allowed)) {
        Err(PassError::Refused(refused)) => refused.iter().map(|r| r.code).collect(),
        Err(other) => panic!("{name}: {other}\n{}", example.text),
        Ok(_) => panic!("{name}: not refused\n{}", example.text),
    }
}

fn assert_true(name: &str, example: &Example) {
    match example.says {
        Says::Accepted => assert_accepted(name, example, Repair::None),
        Says::Refused(code) => {
            assert_eq!(refusals(name, example, Repair::None), [code], "{name}: {}", example.text);
        }
        Says::Repaired(allowed) => {
            let less = if allowed == Repair::Comm { Repair::Local } else { Repair::None };
            assert!(!refusals(name, example, less).is_empty(), "{name}: {}", example.text);
            assert_accepted(name, example, allowed);
        }
    }
}

#[test]
fn explanations_are_true() {
    for code in Code::ALL {
        let text = explain(code);
        assert!(text.starts_with(&format!("# {code}: {}\n\n", headline(code))), "{code}");
        for part in ["In numbers: ", "\nWays out"] {
            assert!(text.contains(part), "{code}: no `{part}`");
        }
        let wide = text.lines().find(|line| line.chars().count() > 110);
        assert_eq!(wide, None, "{code}: fits a terminal");
        assert!((10..=45).contains(&text.lines().count()), "{code}: fits a screen");
        let examples = examples(&code.to_string(), text, Some(code));
        let refused = examples.iter().any(|e| e.says == Says::Refused(code));
        let without = text.contains("There is no example") || text.contains("there is no example");
        assert!(refused != without, "{code}: an example, or why there is none");
        for example in &examples {
            assert_true(&code.to_string(), example);
            if example.says == Says::Refused(code) && text.contains("`--repair=comm`") {
                assert_accepted(&code.to_string(), example, Repair::Comm);
            }
        }
    }
}

#[test]
fn the_chapter_on_claims_is_true() {
    let name = "docs/claims.md";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let examples = examples(name, &text, None);
    for example in &examples {
        assert_true(name, example);
    }
    for (graph, allowed) in [("centred", Repair::Comm), ("joined", Repair::Local)] {
        let shown = examples.iter().find(|e| e.graph.name() == graph).unwrap();
        let repaired = repair(&shown.graph, allowed).unwrap().into_graph();
        let claims = format!("```text\n{}```", claims_text(&repaired).unwrap());
        assert!(text.contains(&claims), "{name}: the claims of @{graph} are\n{claims}");
    }
    for kind in [Says::Accepted, Says::Repaired(Repair::Local), Says::Repaired(Repair::Comm)] {
        assert!(examples.iter().any(|e| e.says == kind), "{kind:?}");
    }
}
