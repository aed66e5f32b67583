//! Axes: round numbers for their marks, and units.

/// The distance of about `count` marks on an axis of this length: 1, 2 or 5 times a power of ten.
pub(crate) fn step(length: f64, count: f64) -> f64 {
    let power = 10f64.powf((length / count).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|x| x * power);
    // The last one is wide enough but for rounding of the power.
    steps.into_iter().find(|step| length / step <= count).unwrap_or(10.0 * power)
}

/// The marks on an axis from `low` to `high`.
pub(crate) fn ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-6).ceil();
    (0..100)
        .map(|i| (first + f64::from(i)) * step)
        .take_while(|x| *x <= high + step * 1e-6)
        .collect()
}

/// A number on an axis whose marks are so far apart, with as many digits as tell it from the marks
/// beside it.
pub(crate) fn label(x: f64, step: f64) -> String {
    let digits = (-step.log10() - 1e-9).ceil();
    let size = x.abs();
    if size >= 1e6 || digits > 5.0 && size < 0.1 {
        if x == 0.0 {
            return "0".to_owned();
        }
        let power = (size.log10() + 1e-9).floor();
        let digits = whole(power + digits, 1.0);
        return format!("{x:.digits$e}");
    }
    let digits = whole(digits, 0.0);
    // No zero has a sign.
    format!("{:.digits$}", x + 0.0)
}

/// A number of digits, at least so many, and no more than a float has.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 15")]
fn whole(digits: f64, least: f64) -> usize {
    digits.clamp(least, 15.0) as usize
}

/// A unit: its name, and what it is of the smallest.
pub(crate) type Unit = (&'static str, f64);

/// Units of memory.
const BYTES: [Unit; 5] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];

/// Units of time.
const TIMES: [Unit; 3] = [("µs", 1.0), ("ms", 1e3), ("s", 1e6)];

/// The largest of some units that is not more than a size, else the smallest.
fn unit(units: &[Unit], size: f64) -> Unit {
    units.iter().rev().find(|(_, of)| *of <= size).copied().unwrap_or(units[0])
}

/// The unit in which so many bytes are told.
pub(crate) fn unit_of_bytes(size: f64) -> Unit {
    unit(&BYTES, size)
}

/// The unit in which so many microseconds are told.
pub(crate) fn unit_of_time(size: f64) -> Unit {
    unit(&TIMES, size)
}

/// A number of bytes in its unit.
pub(crate) fn bytes(n: u64) -> String {
    let (name, of) = unit_of_bytes(n as f64);
    if of > 1.0 { format!("{:.1} {name}", n as f64 / of) } else { format!("{n} {name}") }
}

#[cfg(test)]
mod tests {
    use super::{bytes, label, step, ticks, unit_of_time};

    #[test]
    fn axes_have_round_numbers() {
        for (low, high, expected) in [
            (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"].as_slice()),
            (-1.0, 250.0, &["0", "50", "100", "150", "200", "250"]),
            (0.0123, 0.0141, &["0.0125", "0.0130", "0.0135", "0.0140"]),
            (2.0e9, 2.2e9, &["2.00e9", "2.05e9", "2.10e9", "2.15e9", "2.20e9"]),
        ] {
            let step = step(high - low, 6.0);
            let found: Vec<String> =
                ticks(low, high, step).into_iter().map(|x| label(x, step)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn marks_of_an_axis_have_labels_of_their_own() {
        for (low, high) in [(2.29e6, 2.30e6), (2.4, 2.4 + 1e-6), (0.0, 1.0), (-3e-7, 5e-7)] {
            let step = step(high - low, 6.0);
            let mut labels: Vec<String> =
                ticks(low, high, step).into_iter().map(|x| label(x, step)).collect();
            let count = labels.len();
            assert!(count > 3, "{labels:?}");
            labels.dedup();
            assert_eq!(labels.len(), count, "{labels:?}");
        }
    }

    #[test]
    fn sizes_are_told_in_units() {
        assert_eq!(
            [0, 1023, 1024, 50_775_808].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "48.4 MiB"]
        );
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!([0.0, 999.0, 1e3, 2.5e6].map(|t| unit_of_time(t).0), ["µs", "µs", "ms", "s"]);
    }
}
