//! How much kernels compute in `f64`, counted in their sources.
//!
//! An addition, a product, a comparison and a conversion are an instruction each: compilers may not
//! fuse them, and conversions have a rate that is no higher. Operands are in `f32`. What is done
//! once for a line or a channel counts as nothing, an exponential as [`EXP`].

use crate::work::Started;

/// Instructions of an exponential in `f64`.
const EXP: f64 = 20.0;

/// An addition to a wide sum (`Sum::with` in `wide.cuh`): seven additions.
const WIDE: f64 = 7.0;

/// The join of the moments of a part with those before it (`moments_of_parts` in `batch.cuh`): its
/// size as a number and two operations for the mean; the size again and five for the squares.
const PART: f64 = 3.0 + 6.0;

/// The instructions in `f64` of a kernel in a batch of `n` rows; 0 of one that has none, or some
/// for each line alone.
pub(crate) fn doubles(kernel: &Started<'_>, n: i64) -> f64 {
    let size = |name: &str| kernel.size(name, n);
    let is = |flag: &str| kernel.get(flag, n) > 0.0;
    let elements = || size("TERMS") * size("CHANNELS");
    match kernel.kernel.file {
        // First the sum: x as a number, and an addition; then x again, its distance, the square,
        // an addition. Of a gradient also dy and an addition; then dy again, a product, one more.
        "batch_statistics.cu" => elements() * if is("GRADIENT") { 6.0 + 5.0 } else { 2.0 + 4.0 },
        // x, its distance, times the factor, plus the bias, and rounded. Of a gradient x and its
        // distance, dy less the shift, the distance times the spread, a difference, a product, and
        // rounded.
        "batch_norm.cu" => elements() * if is("GRADIENT") { 8.0 } else { 5.0 },
        // dy, x and its distance, a product, two additions.
        "batch_sums.cu" => 6.0 * elements(),
        "batch_join.cu" => size("PARTS") * size("CHANNELS") * if is("SUMS") { 2.0 } else { PART },
        "reduce.cu" => size("SIZE") * size("COUNT") * of_reduction(kernel),
        // Every slice joins the parts of its line: moments, or plain sums.
        "long_norm.cu" => joined(kernel, n) * if kernel.text("KIND") == "0" { PART } else { 1.0 },
        // Two comparisons for the largest; then a comparison, a difference, an exponential, a
        // product, an addition.
        "long_softmax.cu" => joined(kernel, n) * (2.0 + 4.0 + EXP),
        "all_reduce.cu" => size("COUNT") * of_exchange(kernel, n),
        _ => 0.0,
    }
}

/// The parts that all blocks of the second launch over long lines join.
fn joined(kernel: &Started<'_>, n: i64) -> f64 {
    ["PARTS", "COUNT", "SLICES"].map(|name| kernel.size(name, n)).into_iter().product()
}

/// Those of an element of a reduction, or of a part that its second launch folds.
fn of_reduction(kernel: &Started<'_>) -> f64 {
    let is_part = kernel.text("TAKES_PARTS") != "0";
    match (kernel.text("COMPONENTS"), kernel.text("KIND")) {
        // The largest and the smallest are found in the type of the elements.
        ("0", "2" | "3") => 0.0,
        // A difference, an exponential, a comparison, a product and an addition.
        ("0", "8") if is_part => 4.0 + EXP,
        ("0", _) if is_part => 1.0,
        // Squares.
        ("0", "6" | "9") => 3.0,
        ("0", _) => 2.0,
        // `Product::of` compares twice, makes a number of the exponent and adds it; a join has a
        // product and an addition before it, an element is a number and has an `of` before these.
        (_, "4" | "11") => 6.0 + if is_part { 0.0 } else { 1.0 + 4.0 },
        // A join adds what both have lost. `LargeSum` joins two sums, or compares an element.
        ("4", _) if is_part => 2.0 * (WIDE + 1.0),
        (_, _) => WIDE + 1.0,
    }
}

/// Those of an element of an exchange: of each part a number and an addition, or for wide numbers
/// what joins them; moments are four numbers, for which a join takes some 48 instructions.
fn of_exchange(kernel: &Started<'_>, n: i64) -> f64 {
    let each = match kernel.text("BY") {
        "7" => 0.5 * (WIDE + 1.0),
        "8" => 0.5 * 6.0,
        "9" => 0.25 * 48.0,
        _ if kernel.get("FLOAT", n) > 0.0 => 2.0,
        _ => 0.0,
    };
    each * kernel.size("PARTS", n)
}
