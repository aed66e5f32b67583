//! Encoders as deep as BERT's.

/// The text of an encoder that has so many blocks, given that of `zoo:transformer`, which has two:
/// further ones are copies of the second and read its weights.
pub fn encoder(text: &str, blocks: usize) -> String {
    let mut out = Vec::new();
    // The lines of the second block, as far as they follow one another.
    let mut run: Vec<&str> = Vec::new();
    for line in text.lines() {
        let is_own = ["param @block_2.", "  %block_2."].iter().any(|own| line.starts_with(own));
        if is_own {
            run.push(line);
            continue;
        }
        let copies = (2..=blocks).flat_map(|at| run.iter().map(move |line| copied(line, at)));
        out.extend(copies);
        run.clear();
        out.push(line.replace("%block_2.", &format!("%block_{blocks}.")));
    }
    out.join("\n") + "\n"
}

/// A line of the second block as one of another block: what its weights are read of stays.
fn copied(line: &str, at: usize) -> String {
    let mut copied = line.to_owned();
    for sign in ['%', '@', '"'] {
        copied = copied.replace(&format!("{sign}block_2."), &format!("{sign}block_{at}."));
    }
    copied.replace("%block_1.", &format!("%block_{}.", at - 1))
}
