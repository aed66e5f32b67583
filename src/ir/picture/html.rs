//! A picture as a page that needs nothing else.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::blocks::{Block, Lane, Role};
use super::drawn::{Claims, Level, Outline, Picture, before_replication, weights};
use super::svg::{self, escaped};
use crate::ir::{Graph, Param};

/// What scripts use to zoom and move a drawing.
pub(super) const FRAME: &str = include_str!("frame.js");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// A drawing of more boxes is left out unless it was asked for: the page would not open in a
/// moment.
const MOST: usize = 8000;

/// The page: every level, folded and unfolded.
pub(super) fn page(graph: &Graph, level: Level, claims: &Claims) -> String {
    let mut drawings = String::new();
    let mut data = Vec::new();
    let mut title = String::new();
    for shown in [Level::Layers, Level::Operators] {
        for folded in [true, false] {
            if !folded && graph.split().is_none_or(|split| split.replicas() < 2) {
                continue;
            }
            let outline = Outline::of(graph, shown, folded);
            let is_first = folded && shown == level;
            if outline.boxes() > MOST && !is_first {
                continue;
            }
            let picture = outline.placed();
            let heading = escaped(&picture.title());
            let name = if shown == Level::Layers { "layers" } else { "operators" };
            let (w, h) = (picture.layout.width, picture.layout.height);
            let hidden = if is_first { "" } else { " hidden" };
            let way = if folded { "folded" } else { "unfolded" };
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                drawings,
                "<div class=\"view\" data-level=\"{name}\" data-fold=\"{way}\" \
                 data-title=\"{heading}\"{hidden}>\
                 <svg xmlns=\"http://www.w3.org/2000/svg\" data-w=\"{w:.0}\" data-h=\"{h:.0}\">"
            );
            drawings += &svg::drawing(&picture.layout);
            drawings += "</svg></div>\n";
            data.push(boxes(&picture, claims));
            if is_first {
                title = heading;
            }
        }
    }
    let legend: Vec<String> = Role::ALL.into_iter().map(legend).collect();
    let legend = legend.concat();
    let data = embedded(&Json::Array(data));
    let style = svg::style();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{style}\n{STYLE}</style></head>\n<body>\n\
         <header><h1>{title}</h1>\
         <button id=\"level\">operators</button><button id=\"fold\">unfold replicas</button>\
         <button id=\"fit\">fit</button>\
         <input id=\"find\" type=\"search\" size=\"28\" \
         placeholder=\"search: name, operator, type\">\
         <output id=\"found\"></output><span class=\"legend\">{legend}</span></header>\n\
         <main id=\"main\">{drawings}</main>\n\
         <aside id=\"side\">Point at a box. Click to keep it. Drag to move, turn the wheel to \
         zoom.</aside>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>{FRAME}{SCRIPT}</script>\n</body></html>\n"
    )
}

fn legend(role: Role) -> String {
    let (name, fill, stroke) = role.look();
    format!("<i style=\"background:{fill};border-color:{stroke}\"></i>{name}")
}

/// JSON that ends no script.
fn embedded(json: &Json) -> String {
    let text = json.to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// What is told of each box.
fn boxes(picture: &Picture<'_>, claims: &Claims) -> Json {
    picture.made.blocks.iter().map(|block| told(picture, block, claims)).collect()
}

fn told(picture: &Picture<'_>, block: &Block, claims: &Claims) -> Json {
    let graph = picture.graph;
    let values = block.nodes.iter().flat_map(|id| {
        let node = graph.node(*id);
        // An input has no operator.
        let op = node.op().map_or("input", |op| op.name());
        node.results().iter().map(move |result| {
            let claim = claims.get(before_replication(&result.name));
            json!([
                result.name,
                op,
                result.ty.to_string(),
                result.ty.bytes().to_string(),
                claim,
                node.place().device.to_string(),
                node.place().replica,
                node.origin().0.as_deref(),
            ])
        })
    });
    let weights = weights(graph, &block.nodes);
    let size = |param: &&Param| param.ty.bytes().as_const();
    let bytes: i64 = weights.iter().filter_map(size).fold(0, i64::saturating_add);
    let weights: Vec<String> =
        weights.iter().map(|param| format!("{} : {}", param.name, param.ty)).collect();
    let replicas = match block.lane {
        Lane::Group(group) => picture.folding.groups[group].clone(),
        Lane::All | Lane::Device(_) => Vec::new(),
    };
    json!({
        "names": block.names, "role": block.role.look().0, "values": values.collect::<Json>(),
        "weights": weights, "bytes": bytes, "replicas": replicas, "updates": block.updates,
    })
}
