//! Windows that move over the spatial axes of images.

/// The padding, before each axis and then after each, with which there is a window for every
/// `stride` elements; an odd one is at the end, or at the start where `lower`. Lists that are empty
/// mean ones. The numbers are a file's, so the arithmetic saturates.
pub(super) fn same_padding(
    input: &[i64],
    kernel: &[i64],
    strides: &[i64],
    dilations: &[i64],
    lower: bool,
) -> Vec<i64> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (axis, (size, taps)) in input.iter().zip(kernel).enumerate() {
        // A list that is empty means ones.
        // A stride below 1 is the operator's to refuse; here it must only not divide by 0.
        let stride = strides.get(axis).copied().unwrap_or(1).max(1);
        // An empty list means ones.
        let dilation = dilations.get(axis).copied().unwrap_or(1);
        let extent = taps.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let steps = size.saturating_sub(1).div_euclid(stride);
        // `(ceil(size / stride) - 1) * stride + extent - size`: what the last window lacks.
        let total =
            steps.saturating_mul(stride).saturating_add(extent).saturating_sub(*size).max(0);
        let (small, large) = (total / 2, total - total / 2);
        before.push(if lower { large } else { small });
        after.push(if lower { small } else { large });
    }
    before.extend(after);
    before
}
