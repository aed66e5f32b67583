//! Names of classes and the numbers that they have.

use crate::types::Quoted;

/// The name of a class in a file: its text, or its bytes in ASCII where it is no UTF-8. Different
/// ones stay so.
pub(super) fn name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// The numbers of the classes `found`, which differ, and the names in the order of numbers:
/// `known`, or without any `found`.
pub(super) fn numbered(
    found: Vec<String>,
    known: &[String],
) -> Result<(Vec<i64>, Vec<String>), String> {
    if known.is_empty() {
        return Ok(((0..).take(found.len()).collect(), found));
    }
    let number = |name: &String| known.iter().position(|own| own == name);
    let unknown: Vec<String> =
        found.iter().filter(|name| number(name).is_none()).map(|n| Quoted(n).to_string()).collect();
    if !unknown.is_empty() {
        return Err(format!(
            "its classes {} have no index; the known classes are {}; correct their names or \
             leave their rows out",
            unknown.join(", "),
            listed_classes(known)
        ));
    }
    let numbers = found.iter().filter_map(number).filter_map(|at| i64::try_from(at).ok());
    Ok((numbers.collect(), known.to_vec()))
}

/// The error for two sources that number their classes differently.
pub(super) fn otherwise(reason: &str, a: &[String], b: &[String]) -> String {
    let said = |classes: &[String]| match classes {
        [] => "numbers without names".to_owned(),
        names => listed_classes(names),
    };
    let way = if a.is_empty() || b.is_empty() {
        "give the labels of both as numbers, or of both as names"
    } else {
        "label both with the same classes, or give all labels as numbers"
    };
    let (a, b) = (said(a), said(b));
    format!("{reason}, {a} and {b}; {way}")
}

/// Classes with their numbers, as messages list them.
pub(crate) fn listed_classes(classes: &[String]) -> String {
    const SHOWN: usize = 20;
    let all = classes.iter().take(SHOWN).enumerate();
    let all: Vec<String> = all.map(|(number, name)| format!("{number} {}", Quoted(name))).collect();
    let more = classes.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{listed_classes, name, numbered};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn classes_have_the_numbers_of_others() {
        let known = names(&["ant", "bee", "cat"]);
        assert_eq!(numbered(known.clone(), &[]), Ok((vec![0, 1, 2], known.clone())));
        assert_eq!(numbered(names(&["cat", "bee"]), &known), Ok((vec![2, 1], known.clone())));
        let error = numbered(names(&["bee", "dog", "elk"]), &known).unwrap_err();
        let expected = "its classes `dog`, `elk` have no index; the known classes are 0 `ant`, 1 \
            `bee`, 2 `cat`; correct \
            their names or leave their rows out";
        assert_eq!(error, expected);
    }

    #[test]
    fn names_stay_different_and_lists_short() {
        assert_eq!(name("grün".as_bytes()), "grün");
        assert_eq!((name(b"\xff"), name(b"\xfe")), ("\\xff".to_owned(), "\\xfe".to_owned()));
        let many: Vec<String> = (0..23).map(|i| format!("c{i}")).collect();
        assert!(listed_classes(&many).ends_with("19 `c19` and 3 more"));
    }
}
