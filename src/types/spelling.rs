//! Names that differ in how they are spelled.

/// The letters that tell names apart: neither case nor `_` nor `-`.
fn plain(name: &str) -> Vec<u8> {
    name.bytes().filter(|b| !b"_-".contains(b)).map(|b| b.to_ascii_lowercase()).collect()
}

/// Whether two names are the same but for case, `_` and `-`.
pub(crate) fn alike(a: &str, b: &str) -> bool {
    plain(a) == plain(b)
}

/// The one of `names` that is most like `name`, if one is.
pub(crate) fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // What is longer than any name is like none.
    let wanted: Vec<u8> = plain(name).into_iter().take(64).collect();
    let near = names.into_iter().map(|own| (distance(&wanted, &plain(own)), own)).min()?;
    (near.0 * 3 <= wanted.len()).then_some(near.1)
}

/// The number of letters to insert, remove or change to make one word of the other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{alike, closest};

    #[test]
    fn names_are_told_apart_by_letters() {
        assert!(alike("CategoricalCrossentropy", "categorical_crossentropy"));
        assert!(alike("log-cosh", "LogCosh") && !alike("log", "log_cosh"));
        let names = ["huber", "hinge", "mean_squared_error"];
        assert_eq!(closest("hubber", names), Some("huber"));
        assert_eq!(closest("MeanSquareError", names), Some("mean_squared_error"));
        assert_eq!(closest("adam", names), None);
        assert_eq!(closest("", names), None);
        assert_eq!(closest(&"x".repeat(1000), names), None);
    }
}
