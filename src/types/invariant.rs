//! Invariants that other code guarantees. A broken one stops the program with its name.

/// The value that is there if `what` holds.
///
/// # Panics
/// If there is none: a bug.
#[track_caller]
pub(crate) fn invariant<T>(value: Option<T>, what: &str) -> T {
    #[expect(clippy::panic, reason = "a wrong program would follow")]
    value.unwrap_or_else(|| panic!("internal error, please report it: {what} does not hold"))
}

/// The same number as another type: a count or a checked size, which fits in every type of 32 bits
/// or more.
///
/// # Panics
/// If it does not fit: a bug.
#[track_caller]
pub(crate) fn int<T>(number: impl TryInto<T>) -> T {
    invariant(number.try_into().ok(), "that a count fits in its type")
}

#[cfg(test)]
mod tests {
    use super::{int, invariant};

    #[test]
    fn what_holds_is_given_back() {
        assert_eq!(invariant(Some(3), "that there is a number"), 3);
        assert_eq!(int::<u32>(7usize), 7);
    }

    #[test]
    #[should_panic(expected = "that there is a number does not hold")]
    fn what_does_not_hold_is_named() {
        invariant(None::<u8>, "that there is a number");
    }

    #[test]
    #[should_panic(expected = "that a count fits in its type")]
    fn a_count_that_does_not_fit_is_no_other_one() {
        int::<u32>(-1i64);
    }
}
