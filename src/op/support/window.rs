//! The geometry of sliding windows: which input positions each tap of a kernel meets, axis by axis.

use std::ops::Range;

use smallvec::SmallVec;

use crate::op::OpError;
use crate::types::{Dim, MAX_SIZE, TensorType};

/// A window runs over at most this many spatial axes.
pub(crate) const MAX_AXES: usize = 8;

/// The settings of windows as attributes give them, one number for each spatial axis in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sliding<'a> {
    /// The distance between windows; empty for 1 on every axis.
    pub strides: &'a [i64],
    /// The distance between the taps of a window; empty for 1 on every axis.
    pub dilations: &'a [i64],
    /// The padding before the first element of each axis, then that after the last of each; empty
    /// for none.
    pub pads: &'a [i64],
    /// Whether a last window counts that reaches beyond the padded input; it must begin before the
    /// padding at the end.
    pub ceil_mode: bool,
}

/// One spatial axis of an operator with windows. All sizes are at most [`MAX_SIZE`]; `input`,
/// `kernel`, `stride`, `dilation` and `output` are positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowAxis {
    /// Elements of the input.
    pub input: usize,
    /// Taps of a window.
    pub kernel: usize,
    /// Elements between the first taps of neighbouring windows.
    pub stride: usize,
    /// Elements between neighbouring taps.
    pub dilation: usize,
    /// Elements of padding before the input.
    pub before: usize,
    /// Elements of padding after the input.
    pub after: usize,
    /// Windows: elements of the output.
    pub output: usize,
}

/// The spatial axes of an operator with windows, outermost first.
pub(crate) type Windows = SmallVec<[WindowAxis; 3]>;

/// One axis before it is known how many windows there are; all numbers are in `0..=MAX_SIZE`.
struct Setting {
    size: i64,
    kernel: i64,
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
}

impl Setting {
    /// The elements of a window, taps and gaps.
    fn extent(&self) -> i64 {
        (self.kernel - 1).saturating_mul(self.dilation).saturating_add(1)
    }

    /// The number of windows, if there is one and the padded input is a possible size.
    fn windows(&self, ceil_mode: bool) -> Option<i64> {
        let padded = self.size + self.before + self.after;
        if padded > MAX_SIZE || self.extent() > MAX_SIZE {
            return None;
        }
        let (room, stride) = (padded - self.extent(), self.stride);
        let steps = if ceil_mode {
            let steps = (room + stride - 1).div_euclid(stride);
            let begins = steps.saturating_mul(stride);
            if begins >= self.size + self.before { steps - 1 } else { steps }
        } else {
            room.div_euclid(stride)
        };
        (steps >= 0).then_some(steps + 1)
    }

    /// The axis with these elements of the input and the output.
    fn axis(&self, input: i64, output: i64) -> Result<WindowAxis, OpError> {
        let whole = |size: i64| {
            usize::try_from(size).map_err(|_| OpError::Unsupported(format!("the size {size}")))
        };
        Ok(WindowAxis {
            input: whole(input)?,
            kernel: whole(self.kernel)?,
            stride: whole(self.stride)?,
            dilation: whole(self.dilation)?,
            before: whole(self.before)?,
            after: whole(self.after)?,
            output: whole(output)?,
        })
    }
}

impl Sliding<'_> {
    /// The windows of a kernel over an input; `kernel_attr` is blamed for sizes that do not fit.
    pub(crate) fn over(
        &self,
        kernel_attr: &'static str,
        input: &[i64],
        kernel: &[i64],
    ) -> Result<Windows, OpError> {
        let rank = input.len();
        if rank == 0 || rank > MAX_AXES {
            return Err(OpError::Unsupported(format!("a window over {rank} axes")));
        }
        if kernel.len() != rank {
            let reason = format!("{} sizes for {rank} spatial axes", kernel.len());
            return Err(OpError::attr(kernel_attr, reason));
        }
        let axis = |(axis, (size, taps)): (usize, (&i64, &i64))| {
            let at = self.setting(kernel_attr, axis, rank, *size, *taps)?;
            let Setting { size, kernel, dilation, before, after, .. } = at;
            let output = at.windows(self.ceil_mode).ok_or_else(|| {
                let reason = format!(
                    "no window of {kernel} taps {dilation} apart fits into {size} elements \
                     padded by {before} and {after}"
                );
                OpError::attr(kernel_attr, reason)
            })?;
            at.axis(size, output)
        };
        input.iter().zip(kernel).enumerate().map(axis).collect()
    }

    /// The windows through which each of the elements of `input` reaches elements of an output: of
    /// a kernel over that output, which has
    /// `(input - 1) * stride + (kernel - 1) * dilation + 1 + extra` elements without the padding.
    /// In the result, `input` is the size of the output, and `output` that of `input`.
    ///
    /// `output_padding` has `extra` for each axis or is empty; `kernel_attr` is blamed for sizes
    /// that do not fit.
    pub(crate) fn spread(
        &self,
        kernel_attr: &'static str,
        input: &[i64],
        kernel: &[i64],
        output_padding: &[i64],
    ) -> Result<Windows, OpError> {
        let rank = input.len();
        let axis = |(axis, (size, taps)): (usize, (&i64, &i64))| {
            let at = self.setting(kernel_attr, axis, rank, *size, *taps)?;
            let extra = setting("output_padding", output_padding, axis, rank, 0)?;
            let reach = (at.size - 1).saturating_mul(at.stride);
            let all = reach.saturating_add(at.extent()).saturating_add(extra);
            let output = all - at.before - at.after;
            if !(1..=MAX_SIZE).contains(&output) {
                let reason = format!("{size} windows of {taps} taps make {output} elements");
                return Err(OpError::attr(kernel_attr, reason));
            }
            at.axis(output, at.size)
        };
        let windows = input.iter().zip(kernel).enumerate().map(axis).collect::<Result<_, _>>()?;
        if rank == 0 || rank > MAX_AXES || kernel.len() != rank {
            let text = format!("a kernel of {} axes over {rank} axes", kernel.len());
            return Err(OpError::Unsupported(text));
        }
        Ok(windows)
    }

    /// The numbers of axis `axis` of `rank`, of so many elements and taps.
    fn setting(
        &self,
        kernel_attr: &'static str,
        axis: usize,
        rank: usize,
        size: i64,
        taps: i64,
    ) -> Result<Setting, OpError> {
        Ok(Setting {
            kernel: in_range(kernel_attr, taps, 1)?,
            stride: setting("strides", self.strides, axis, rank, 1)?,
            dilation: setting("dilations", self.dilations, axis, rank, 1)?,
            before: setting("pads", self.pads, axis, rank * 2, 0)?,
            after: setting("pads", self.pads, axis + rank, rank * 2, 0)?,
            size: in_range("input", size, 1)?,
        })
    }
}

// Visits by tap and not by window: padding cuts a range off each row once, and the inner loop
// over the windows of a row has no bounds to test.

/// Calls `f` for each row of windows of which the tap `tap`, counted row-major, lies in the input:
/// with the position in the input that the first of them meets, and with the numbers of the
/// windows. The positions of a row are as far apart as the stride of the last axis.
pub(crate) fn rows_of_tap(
    axes: &[WindowAxis],
    tap: usize,
    f: &mut impl FnMut(usize, Range<usize>),
) {
    walk(axes, tap, 0, 0, f);
}

fn walk(
    axes: &[WindowAxis],
    tap: usize,
    at: usize,
    window: usize,
    f: &mut impl FnMut(usize, Range<usize>),
) {
    let Some((axis, inner)) = axes.split_first() else { return };
    let size = |f: fn(&WindowAxis) -> usize| inner.iter().map(f).product::<usize>();
    let taps = size(|a| a.kernel);
    let outputs = axis.outputs(tap / taps);
    if outputs.is_empty() {
        return;
    }
    if inner.is_empty() {
        let position = axis.position(outputs.start, tap);
        return f(at + position, window + outputs.start..window + outputs.end);
    }
    let (plane, windows) = (size(|a| a.input), size(|a| a.output));
    for o in outputs {
        let position = axis.position(o, tap / taps);
        walk(inner, tap % taps, at + position * plane, window + o * windows, f);
    }
}

fn in_range(attr: &'static str, value: i64, least: i64) -> Result<i64, OpError> {
    if (least..=MAX_SIZE).contains(&value) {
        Ok(value)
    } else {
        Err(OpError::attr(attr, format!("{value} is out of range; it must be at least {least}")))
    }
}

/// The number for an axis in a list of `count`, or of none: then it is the least that it may be.
fn setting(
    attr: &'static str,
    values: &[i64],
    at: usize,
    count: usize,
    least: i64,
) -> Result<i64, OpError> {
    if values.is_empty() {
        return Ok(least);
    }
    if values.len() != count {
        let reason = format!("{} numbers; there must be {count}", values.len());
        return Err(OpError::attr(attr, reason));
    }
    in_range(attr, values.get(at).copied().unwrap_or(least), least)
}

/// Sizes before the spatial axes, then one for each of these.
pub(in crate::op) fn sizes_with(
    leading: &[usize],
    windows: &[WindowAxis],
    size: fn(&WindowAxis) -> usize,
) -> SmallVec<[usize; 5]> {
    leading.iter().copied().chain(windows.iter().map(size)).collect()
}

/// The sizes of the axes of an operand behind the first two, which must be constants.
pub(crate) fn spatial_sizes(
    operand: usize,
    ty: &TensorType,
) -> Result<SmallVec<[i64; 3]>, OpError> {
    if ty.rank() < 3 {
        let expected = "it must have a spatial axis behind the first two";
        return Err(OpError::shape(operand, ty, expected));
    }
    let known = |(axis, d): (usize, &Dim)| {
        d.as_const().ok_or_else(|| {
            OpError::NotConstant(format!("the size {d} of axis {} of operand {operand}", axis + 2))
        })
    };
    ty.shape.iter().skip(2).enumerate().map(known).collect()
}

impl WindowAxis {
    /// True if a tap of some window lies outside the input.
    pub(crate) fn reaches_outside(&self) -> bool {
        let last = self.output.saturating_sub(1).saturating_mul(self.stride);
        let taps = self.kernel.saturating_sub(1).saturating_mul(self.dilation);
        self.before > 0 || last.saturating_add(taps).saturating_sub(self.before) >= self.input
    }

    /// An axis with one window of one tap.
    pub(crate) const UNIT: Self =
        Self { input: 1, kernel: 1, stride: 1, dilation: 1, before: 0, after: 0, output: 1 };

    /// The input position of a tap of the window `output`, for a pair that [`Self::taps`] or
    /// [`Self::outputs`] gives.
    #[inline]
    pub(crate) const fn position(&self, output: usize, tap: usize) -> usize {
        (output * self.stride + tap * self.dilation).saturating_sub(self.before)
    }

    /// The windows whose tap `tap` lies in the input.
    #[inline]
    pub(crate) fn outputs(&self, tap: usize) -> Range<usize> {
        let offset = tap.saturating_mul(self.dilation);
        let first = self.before.saturating_sub(offset).div_ceil(self.stride);
        let end = (self.before + self.input).saturating_sub(offset).div_ceil(self.stride);
        let end = end.min(self.output);
        first.min(end)..end
    }

    /// The taps of the window `output` that lie in the input.
    #[inline]
    pub(crate) fn taps(&self, output: usize) -> Range<usize> {
        let start = output * self.stride;
        let first = self.before.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.before + self.input).saturating_sub(start).div_ceil(self.dilation);
        let end = end.min(self.kernel);
        first.min(end)..end
    }

    /// Whether all taps of these windows, of which there is one, lie in the input.
    #[inline]
    pub(crate) const fn sees_inside(&self, windows: &Range<usize>) -> bool {
        let last = (windows.end - 1) * self.stride + (self.kernel - 1) * self.dilation;
        windows.start * self.stride >= self.before && last < self.before + self.input
    }

    /// The number of windows as a size.
    pub(crate) fn windows(&self) -> Dim {
        i64::try_from(self.output).unwrap_or(i64::MAX).into()
    }

    /// The number of taps of the window `output` that lie in the input or its padding.
    #[inline]
    pub(crate) fn padded_taps(&self, output: usize) -> usize {
        let padded = self.before + self.input + self.after;
        padded.saturating_sub(output * self.stride).div_ceil(self.dilation).min(self.kernel)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "the sizes of the tests are small")]
mod tests {
    use rand::Rng;

    use super::{MAX_SIZE, OpError, Sliding, WindowAxis};
    use crate::op::testing::rng;

    fn one(
        input: i64,
        kernel: i64,
        [stride, dilation, before, after]: [i64; 4],
        ceil_mode: bool,
    ) -> Result<WindowAxis, OpError> {
        let (strides, dilations, pads) = (&[stride], &[dilation], &[before, after]);
        let sliding = Sliding { strides, dilations, pads, ceil_mode };
        sliding.over("kernel", &[input], &[kernel]).map(|w| w[0])
    }

    #[test]
    fn windows_are_those_found_by_trial() {
        let mut rng = rng(1);
        for _ in 0..3000 {
            let mut pick = |from: i64, to: i64| rng.random_range(from..=to);
            let (input, kernel, stride, dilation) =
                (pick(1, 9), pick(1, 4), pick(1, 4), pick(1, 3));
            let (before, after, ceil) = (pick(0, 5), pick(0, 5), pick(0, 1) == 1);
            let extent = (kernel - 1) * dilation;
            let start = |o: i64| o * stride - before;
            let last = input + after - 1;
            // A last partial window counts in ceil mode, unless it begins behind the input.
            let fits =
                |o: i64| start(o) + extent <= last || (ceil && start(o) + extent < last + stride);
            let count = (0..99).take_while(|o| fits(*o)).count();
            let behind = ceil && count > 0 && start(count as i64 - 1) >= input;
            let expected = if behind { count - 1 } else { count };
            let axis = one(input, kernel, [stride, dilation, before, after], ceil);
            let Ok(axis) = axis else {
                assert_eq!(expected, 0);
                continue;
            };
            assert_eq!(axis.output, expected, "{axis:?} ceil {ceil}");
            for o in 0..axis.output {
                let at = |t: usize| (o * axis.stride + t * axis.dilation) as i64 - before;
                let inside: Vec<usize> =
                    (0..axis.kernel).filter(|t| (0..input).contains(&at(*t))).collect();
                assert_eq!(axis.taps(o).collect::<Vec<_>>(), inside, "{axis:?}");
                for t in 0..axis.kernel {
                    assert_eq!(axis.outputs(t).contains(&o), inside.contains(&t), "{axis:?}");
                }
                assert!(inside.iter().all(|t| axis.position(o, *t) as i64 == at(*t)));
                let padded = (0..axis.kernel).filter(|t| at(*t) < input + after).count();
                assert_eq!(axis.padded_taps(o), padded, "{axis:?}");
            }
        }
    }

    #[test]
    fn hostile_settings_are_errors() {
        let far = [i64::MIN, -1, i64::MAX, MAX_SIZE + 1];
        for v in far {
            for at in 0..4 {
                let mut settings = [1, 1, 0, 0];
                settings[at] = v;
                for ceil in [false, true] {
                    assert!(one(8, 3, settings, ceil).is_err(), "{settings:?}");
                }
            }
            assert!(one(8, v, [1, 1, 0, 0], true).is_err());
            assert!(one(v, 3, [1, 1, 0, 0], true).is_err());
        }
        assert!(one(8, 3, [0, 1, 0, 0], false).is_err());
        assert!(one(8, MAX_SIZE, [1, MAX_SIZE, 0, 0], false).is_err());
        let wide = one(8, MAX_SIZE / 2, [MAX_SIZE, MAX_SIZE / 2, 5, 5], true);
        assert!(wide.is_err());
        let sliding = Sliding { strides: &[], dilations: &[], pads: &[], ceil_mode: false };
        assert!(sliding.over("kernel", &[1; 9], &[1; 9]).is_err());
        assert!(sliding.over("kernel", &[], &[]).is_err());
        assert!(sliding.over("kernel", &[4, 4], &[1]).is_err());
        assert!(Sliding { pads: &[1], ..sliding }.over("kernel", &[4], &[1]).is_err());
    }
}
