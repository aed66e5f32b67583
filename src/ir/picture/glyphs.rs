//! The widths of glyphs, so that a text fits its box wherever the file is opened.

/// The advances of the printable ASCII characters of `DejaVu Sans`, in thousandths of the font
/// size; the fonts that stand in for it are not wider.
const ASCII: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
    575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685,
    611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579,
    278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];

/// The width of any other character.
const WIDE: u16 = 1450;

fn advance(c: char) -> f64 {
    let at = (c as usize).checked_sub(usize::from(b' '));
    // Characters beyond the table are as wide as the widest glyph.
    f64::from(at.and_then(|at| ASCII.get(at)).copied().unwrap_or(match c {
        '…' => 1000,
        '×' | '→' => 838,
        '·' => 318,
        _ => WIDE,
    }))
}

/// The width of a text in pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size / 1000.0
}

/// A text that is at most `limit` pixels wide: the last entries of a list, else the characters in
/// its middle, give way to an ellipsis.
/// Control characters, which no file of XML may have, and marks of direction are shown as `?`.
pub(crate) fn fitted(text: &str, size: f64, limit: f64) -> String {
    // A name may be as long as a file: nothing beyond what fits is looked at.
    let most = 400;
    let hidden = |c: char| {
        c.is_control()
            || ('\u{200b}'..='\u{200f}').contains(&c)
            || ('\u{2028}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
            || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    let shown = |c: char| if hidden(c) { '?' } else { c };
    let first: String = text.chars().take(most).map(shown).collect();
    if width(&first, size) <= limit && text.chars().count() <= most {
        return first;
    }
    let cuts = first.match_indices(", ").map(|(at, _)| format!("{}, …", &first[..at]));
    if let Some(cut) = cuts.take_while(|cut| width(cut, size) <= limit).last() {
        return cut;
    }
    let left = limit - width("…", size);
    let side = |chars: &mut dyn Iterator<Item = char>, limit: f64| {
        let mut used = 0.0;
        chars
            .map(shown)
            .take_while(|c| {
                used += advance(*c) * size / 1000.0;
                used <= limit
            })
            .collect::<String>()
    };
    let start = side(&mut text.chars(), left / 2.0);
    let end: String = side(&mut text.chars().rev(), left / 2.0).chars().rev().collect();
    format!("{start}…{end}")
}

/// A text in lines that are at most `limit` pixels wide, broken between its words.
pub(crate) fn wrapped(text: &str, size: f64, limit: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let joined = lines.last().map(|line| format!("{line} {word}"));
        let joined = joined.filter(|joined| width(joined, size) <= limit);
        if joined.is_some() {
            lines.pop();
        }
        lines.push(joined.unwrap_or_else(|| word.to_owned()));
    }
    // A word may be wider.
    lines.iter().map(|line| fitted(line, size, limit)).collect()
}

#[cfg(test)]
mod tests {
    use super::{fitted, width, wrapped};

    #[test]
    fn texts_are_broken_between_words() {
        let text = "A rectangle is a region, in the colour of what writes it first.";
        for limit in [90.0, 200.0, 1000.0] {
            let lines = wrapped(text, 10.0, limit);
            assert_eq!(lines.join(" "), text);
            assert!(lines.iter().all(|line| width(line, 10.0) <= limit), "{lines:?}");
        }
        assert_eq!(wrapped(text, 10.0, 1000.0).len(), 1);
        assert_eq!(wrapped("a conv2d_transpose", 10.0, 60.0).len(), 2);
        assert!(wrapped("a conv2d_transpose", 10.0, 60.0)[1].contains('…'));
        assert_eq!(wrapped("", 10.0, 60.0), [""; 0]);
    }

    #[test]
    fn texts_fit_what_they_are_given() {
        let long = "w".repeat(100_000);
        for text in ["a", "conv2d_1", "块块块块块块块块块块块块", &long, "a\u{0}b\u{202e}"]
        {
            let short = fitted(text, 12.0, 80.0);
            assert!(width(&short, 12.0) <= 80.0, "{short}");
            assert!(!short.contains(char::is_control), "{short}");
        }
        assert_eq!(fitted("block2_sepconv1", 12.0, 200.0), "block2_sepconv1");
        assert_eq!(fitted("a\u{0}b", 12.0, 200.0), "a?b");
        let list = "conv_transpose, sum, add, reshape";
        assert_eq!(fitted(list, 10.0, 200.0), list);
        assert_eq!(fitted(list, 10.0, 150.0), "conv_transpose, sum, add, …");
        assert_eq!(fitted(list, 10.0, 50.0), "con…ape");
    }
}
