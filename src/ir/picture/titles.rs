//! The titles of boxes of several layers: what the names of their layers begin with.

use std::collections::BTreeSet;

use super::blocks::{Flow, SEPARATORS};

/// The most layers whose names a box has, each on a line of its own.
pub(super) const FEW: usize = 3;

/// What the names of more layers begin with, where it says which layers they are.
#[derive(Default)]
pub(super) struct Beginnings(BTreeSet<(Flow, String)>);

impl Beginnings {
    /// Those of boxes, by the names of their layers: what is no other box's beginning. One of
    /// several words may be that of a layer beside it, as of `block_1_add` beside `block_1`.
    pub(super) fn of(boxes: &[(Flow, Vec<String>)]) -> Self {
        let mut known = BTreeSet::new();
        for (at, (flow, names)) in boxes.iter().enumerate() {
            let Some(own) = common(names).filter(|_| names.len() > FEW) else { continue };
            let is_word = !own.trim_matches(SEPARATORS).contains(SEPARATORS);
            let mut others = boxes[..at].iter().chain(&boxes[at + 1..]);
            let is_taken = others.any(|(lane, other)| {
                let counts = lane == flow && (is_word || other.len() > FEW);
                counts && other.iter().all(|name| begins(name, own))
            });
            if !is_taken {
                known.insert((*flow, own.to_owned()));
            }
        }
        Self(known)
    }

    /// The lines that say which layers a box has.
    pub(super) fn lines(&self, flow: Flow, names: &[String]) -> Vec<String> {
        let count = names.len();
        let ([first, .., last], true) = (names, count > FEW) else { return names.to_vec() };
        match common(names) {
            Some(own) if self.0.contains(&(flow, own.to_owned())) => {
                vec![format!("{own} · {count} layers")]
            }
            Some(_) | None => vec![format!("{first} … {last}"), format!("{count} layers")],
        }
    }
}

/// What all of these names begin with, in whole words.
fn common(names: &[String]) -> Option<&str> {
    let (first, rest) = names.split_first()?;
    let ends = first.match_indices(SEPARATORS).map(|(end, _)| end).chain([first.len()]);
    let words = ends.map(|end| &first[..end]).filter(|own| own.ends_with(char::is_alphanumeric));
    words.take_while(|own| rest.iter().all(|name| begins(name, own))).last()
}

/// True for a name that begins with these words.
fn begins(name: &str, words: &str) -> bool {
    let rest = name.strip_prefix(words);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(SEPARATORS))
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Lane;
    use super::*;

    /// The titles of boxes of one lane, whose layers have these names.
    fn titles(boxes: &[&[&str]]) -> Vec<String> {
        let flow = Flow { lane: Lane::All, up: false };
        let names = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let boxes: Vec<(Flow, Vec<String>)> = boxes.iter().map(|own| (flow, names(own))).collect();
        let known = Beginnings::of(&boxes);
        boxes.iter().map(|(flow, names)| known.lines(*flow, names).join(", ")).collect()
    }

    #[test]
    fn boxes_of_other_layers_have_other_titles() {
        let unet: [&[&str]; 4] = [
            &["down_1.conv_1", "down_1.relu_1", "down_1.conv_2", "down_1.relu_2"],
            &["down_1.pool", "down_2.conv_1", "down_2.relu_1", "down_2.conv_2"],
            &["down_2.pool", "down_3.conv_1", "down_3.relu_1", "down_3.conv_2"],
            &["bottom.conv_1", "bottom.relu_1", "bottom.conv_2", "bottom.relu_2"],
        ];
        let expected = [
            "down_1 · 4 layers",
            "down_1.pool … down_2.conv_2, 4 layers",
            "down_2.pool … down_3.conv_2, 4 layers",
            "bottom · 4 layers",
        ];
        assert_eq!(titles(&unet), expected);
        // A word that other layers have, too, says nothing; nor does what another chain has.
        let nodes: [&[&str]; 2] = [&["node_a", "node__b", "node_c", "node_d"], &["node_e"]];
        assert_eq!(titles(&nodes), ["node_a … node_d, 4 layers", "node_e"]);
        let twice =
            |last: &'static [&'static str]| titles(&[&["/l/a", "/l/b", "/l/c", "/l"], last]);
        assert_eq!(twice(&["/m"])[0], "/l · 4 layers");
        assert_eq!(twice(&["/l/e", "/l/f", "/l/g", "/l/h"])[0], "/l/a … /l, 4 layers");
    }

    #[test]
    fn a_layer_beside_a_block_leaves_it_its_name() {
        let block: [&[&str]; 3] = [
            &["block_1_conv", "block_1_bn", "block_1_relu", "block_1_conv_2"],
            &["block_10_conv", "block_10_bn", "block_10_relu", "block_10_conv_2"],
            &["block_1_add"],
        ];
        assert_eq!(titles(&block), ["block_1 · 4 layers", "block_10 · 4 layers", "block_1_add"]);
        assert_eq!(titles(&[&["a", "b", "c"]]), ["a, b, c"]);
        assert_eq!(titles(&[&["_", "_", "é_b", "c"]]), ["_ … c, 4 layers"]);
    }
}
