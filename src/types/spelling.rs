//! Names that differ in how they are spelled.

use strsim::osa_distance;

/// The letters that tell names apart: neither case nor `_` nor `-`.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !"_-".contains(*c)).map(|c| c.to_ascii_lowercase()).collect()
}

/// Whether two names are the same but for case, `_` and `-`.
pub(crate) fn alike(a: &str, b: &str) -> bool {
    plain(a) == plain(b)
}

/// True if a name is written without quotes: a letter or `_`, then letters, digits, `_` and `.`.
pub(crate) fn is_bare(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
}

/// The one of `names` that is most like `name`, if one is.
pub(crate) fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // What is longer than any name is like none.
    let wanted: String = plain(name).chars().take(64).collect();
    let near = names.into_iter().map(|own| (osa_distance(&wanted, &plain(own)), own)).min()?;
    (near.0 * 3 <= wanted.chars().count()).then_some(near.1)
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
        assert_eq!(closest("hinge", ["graph", "higne"]), Some("higne"));
        assert_eq!(closest("adam", names), None);
        assert_eq!(closest("", names), None);
        assert_eq!(closest(&"x".repeat(1000), names), None);
    }
}
