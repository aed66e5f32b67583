//! Locations of refused operators in the file of the model.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::head;
use crate::format::onnx;
use crate::ir;
use crate::pass::SplitRefused;
use crate::types::Quoted;

/// Says of each refusal where it stands in the file of the model `spec`: the line of a text, the
/// node of an ONNX file. A model without a file, or a file that is no longer there, leaves them as
/// they are.
pub(crate) fn locate(spec: &str, refused: &mut [SplitRefused]) {
    let path = Path::new(spec);
    let Ok(head) = head(path) else { return };
    if head.starts_with(b"fanwise ") {
        let Ok(text) = fs::read_to_string(path) else { return };
        for refusal in refused {
            if let Some(line) = ir::line_of(&text, &refusal.value) {
                refusal.place = format!("{spec}:{line}: {}", refusal.place);
            }
        }
    } else if head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        for refusal in refused {
            refusal.place = format!("{spec}: {}", refusal.place);
        }
    } else {
        in_onnx(spec, refused);
    }
}

fn in_onnx(spec: &str, refused: &mut [SplitRefused]) {
    let found = {
        let labels: BTreeSet<&str> = refused.iter().map(|r| r.label.as_str()).collect();
        // A file that can no longer be read has no places; labels stand alone then.
        onnx::locate(Path::new(spec), &labels).unwrap_or_default()
    };
    for refusal in refused {
        let label = Quoted(&refusal.label);
        let place = match found.get(&refusal.label) {
            Some(place) if place.inside => {
                format!("{label}, inside node {} ({})", place.index, Quoted(&place.op))
            }
            Some(place) => format!("node {} {label} ({})", place.index, place.op),
            None => format!("{} {label}", refusal.op),
        };
        let layer = layer(&refusal.label).filter(|_| refusal.op != "input");
        let layer = layer.map_or_else(String::new, |l| format!(", layer {}", Quoted(l)));
        refusal.place = format!("{spec}: {place}{layer}");
    }
}

/// The layer that a node's name tells, as exporters write it: `/layer1/0/conv/Conv` is of
/// `layer1/0/conv`.
fn layer(label: &str) -> Option<&str> {
    let (layer, _) = label.trim_start_matches('/').rsplit_once('/')?;
    (!layer.is_empty()).then_some(layer)
}
