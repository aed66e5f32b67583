//! The documented schema of the JSON form accepts what is written, and is as strict as the reader.

use std::collections::BTreeSet;
use std::fs;

use fanwise::ir::{Graph, from_json, parse, to_json};
use fanwise::pass::{Replicate, WeightPlacement, replicate};
use fanwise::types::Device;
use fanwise::zoo;
use serde_json::Value;

/// An attribute of every kind, a constant, a label and an updated parameter.
const EVERYTHING: &str = "fanwise 1
symbol N >= 0
param @w : f32[2] = \"m.onnx#w\" blake3:0000000000000001
graph @every(%x: f32[N,2]) -> (y: f32[N,2], w: f32[2]) {
  %c : f32[2] = constant() {value=f32[2] [0.5, inf]}
  %s : f32[N,2] = add(%x, %c)
  %e : f32[N,2] = elu(%s) {alpha=0.5}
  %f : f32[N,2] = cast(%e) {to=f32}
  %m : f32[N,1] = reduce_sum(%f) {axes=[1], keepdims=true}
  %y : f32[N,2] = add(%e, %m)
  %w.new : f32[2] = mul(@w, %c)
  update @w = %w.new
  return %y, @w
}
";

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/graph.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn graphs() -> Vec<Graph> {
    let model = zoo::build("xception:narrow=32,pixels=71").unwrap().0;
    let devices: Vec<Device> = (0..2).map(Device::gpu).collect();
    let mut options = Replicate::over(devices);
    let shared = replicate(&model, &options).unwrap();
    options.weights = WeightPlacement::Mirrored;
    let mirrored = replicate(&model, &options).unwrap();
    vec![model, shared, mirrored, parse(EVERYTHING).unwrap()]
}

/// A validator of the part of JSON Schema that the documented schema uses.
struct Validator<'a> {
    definitions: &'a Value,
    /// The definitions and properties that a valid document has used.
    used: BTreeSet<String>,
}

impl Validator<'_> {
    fn check(&mut self, schema: &Value, name: &str, value: &Value) -> Result<(), String> {
        if let Some(target) = schema["$ref"].as_str() {
            let name = target.strip_prefix("#/$defs/").unwrap();
            let definition = &self.definitions[name];
            assert!(!definition.is_null(), "no definition {name}");
            self.used.insert(name.to_owned());
            return self.check(&definition.clone(), name, value);
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let matching = choices.iter().filter(|s| self.check(s, name, value).is_ok()).count();
            return if matching == 1 { Ok(()) } else { Err(format!("{name}: {value}")) };
        }
        let constant = schema.get("const").is_none_or(|constant| constant == value);
        let listed = schema["enum"].as_array().is_none_or(|list| list.contains(value));
        if !(constant && listed && is_of(&schema["type"], value)) {
            return Err(format!("{name}: {value}"));
        }
        for item in value.as_array().into_iter().flatten() {
            self.check(&schema["items"], name, item)?;
        }
        if let Some(fields) = value.as_object() {
            for field in schema["required"].as_array().into_iter().flatten() {
                if !fields.contains_key(field.as_str().unwrap()) {
                    return Err(format!("{name}: no {field}"));
                }
            }
            for (field, value) in fields {
                let known = schema["properties"].get(field);
                let rest = Some(&schema["additionalProperties"]).filter(|rest| rest.is_object());
                let of = known.or(rest).ok_or_else(|| format!("{name}: unknown {field}"))?;
                self.check(of, &format!("{name}.{field}"), value)?;
                self.used.insert(format!("{name}.{field}"));
            }
        }
        Ok(())
    }
}

/// Whether `value` is of the JSON type, or of one of the types, that `types` names.
fn is_of(types: &Value, value: &Value) -> bool {
    if let Some(types) = types.as_array() {
        return types.iter().any(|ty| is_of(ty, value));
    }
    types.as_str().is_none_or(|ty| match ty {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        other => panic!("the schema has the type {other}"),
    })
}

/// Every definition, and every property of one as `definition.property`.
fn declared(definitions: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, definition) in definitions.as_object().unwrap() {
        names.insert(name.clone());
        let forms = definition["oneOf"].as_array().map_or(vec![definition], |f| f.iter().collect());
        for form in forms {
            for (property, _) in form["properties"].as_object().into_iter().flatten() {
                names.insert(format!("{name}.{property}"));
            }
        }
    }
    names
}

#[test]
fn graphs_match_the_documented_schema_and_use_all_of_it() {
    let schema = schema();
    let definitions = &schema["$defs"];
    let mut validator = Validator { definitions, used: BTreeSet::from(["graph".to_owned()]) };
    for graph in graphs() {
        let json = serde_json::from_str(&to_json(&graph)).unwrap();
        validator.check(&definitions["graph"], "graph", &json).unwrap();
    }
    let unused: Vec<String> = declared(definitions).difference(&validator.used).cloned().collect();
    // No operator of the library has a list of floats as an attribute of these graphs.
    assert_eq!(unused, ["attr.floats"], "documented, and in no graph");
}

/// Every object in `value`, as a JSON pointer.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, value)| objects(value, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, value)| objects(value, &format!("{at}/{i}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_reader_is_as_strict_as_the_documented_schema() {
    let schema = schema();
    let definitions = &schema["$defs"];
    let mut validator = Validator { definitions, used: BTreeSet::new() };
    let devices: Vec<Device> = (0..2).map(Device::gpu).collect();
    let net = parse(EVERYTHING).unwrap();
    let split = "fanwise 1\nsymbol N >= 0\ngraph @net(%x: f32[N,8]) -> (y: f32[N,8]) {\n  \
        %y : f32[N,8] = softmax(%x) {axis=1}\n  return %y\n}\n";
    let replicas = replicate(&parse(split).unwrap(), &Replicate::over(devices)).unwrap();
    for graph in [net, replicas] {
        let whole: Value = serde_json::from_str(&to_json(&graph)).unwrap();
        let mut found = Vec::new();
        objects(&whole, "", &mut found);
        for at in found.iter().filter(|at| !at.ends_with("/attrs")) {
            let mut extended = whole.clone();
            extended.pointer_mut(at).unwrap()["unknown"] = true.into();
            assert!(validator.check(&definitions["graph"], "graph", &extended).is_err(), "{at}");
            assert!(from_json(&extended.to_string()).is_err(), "{at}");
            for field in whole.pointer(at).unwrap().as_object().unwrap().keys() {
                let mut cut = whole.clone();
                cut.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(field);
                // A field that the schema requires is one without which nothing is read. Others
                // may be absent, though the graph may then contradict itself.
                if validator.check(&definitions["graph"], "graph", &cut).is_err() {
                    assert!(from_json(&cut.to_string()).is_err(), "{at}/{field}");
                }
            }
        }
    }
}
