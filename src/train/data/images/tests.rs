//! Steps against what they say, on images of a few pixels.

use std::collections::BTreeMap;

use super::{Change, Column, DType, Fill, Images, Layout, RowKey, Step, Tensor};

/// 2 channels of 3 by 4 pixels: channel, row and column are the digits.
fn image() -> Tensor {
    let digits = |i: u8| f32::from(100 * (i / 12) + 10 * (i / 4 % 3) + i % 4);
    let data: Vec<f32> = (0..24).map(digits).collect();
    Tensor::new(&[2, 3, 4], &data).unwrap()
}

fn images(steps: Vec<Step>) -> Images {
    let first = Layout::ChannelsFirst;
    Images { column: "x".to_owned(), layout: first, result: first, steps }
}

fn apply(images: &Images, cell: Tensor, row: u64) -> Tensor {
    let before = [Column::new("x", cell.dtype(), cell.dims())];
    let columns = images.columns(&before).unwrap();
    let mut cells = vec![cell];
    images.apply(&RowKey { row, ..RowKey::default() }, &before, &mut cells).unwrap();
    assert_eq!(columns[0].row_type(), cells[0].tensor_type());
    cells.remove(0)
}

/// How often each first channel is made of the image over many rows.
fn first_channels(step: Step) -> BTreeMap<Vec<u32>, u32> {
    let (images, mut counts) = (images(vec![step]), BTreeMap::new());
    for row in 0..1000 {
        let made = apply(&images, image(), row);
        assert_eq!(made, apply(&images, image(), row));
        let data = made.as_slice::<f32>();
        let (first, second) = data.split_at(data.len() / 2);
        // All channels move together.
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits();
        let together = |(a, b): (&f32, &f32)| same(a + 100.0, *b) || same(*a, -1.0);
        assert!(first.iter().zip(second).all(together));
        *counts.entry(first.iter().map(|x| x.to_bits()).collect()).or_insert(0) += 1;
    }
    counts
}

fn bits<const K: usize>(data: [f32; K]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn shifts_move_whole_pixels_in_their_range() {
    // Up to 1.02 rows and 1 column: -1, 0 or 1 down, with a probability of about a quarter, a half,
    // a quarter.
    let shift = |fill| Step::Shift { height: 0.34, width: 0.25, fill };
    let counts = first_channels(shift(Fill::Nearest));
    assert_eq!(counts.len(), 9);
    let still = counts[&bits([0., 1., 2., 3., 10., 11., 12., 13., 20., 21., 22., 23.])];
    assert!((200..310).contains(&still), "{still}");
    // The image of one down and one right, and that of one up and one left.
    assert!(
        counts.contains_key(&bits([11., 12., 13., 13., 21., 22., 23., 23., 21., 22., 23., 23.]))
    );
    assert!(counts.contains_key(&bits([0., 0., 1., 2., 0., 0., 1., 2., 10., 10., 11., 12.])));
    let counts = first_channels(shift(Fill::Wrap));
    assert!(counts.contains_key(&bits([11., 12., 13., 10., 21., 22., 23., 20., 1., 2., 3., 0.])));
    let none = Step::Shift { height: 0.0, width: 0.0, fill: Fill::Nearest };
    assert_eq!(first_channels(none).len(), 1);
}

#[test]
fn places_beyond_the_edges_hold_what_keras_puts_there() {
    let places =
        |fill: Fill| -> Vec<Option<usize>> { (-5..8).map(|at| fill.place(at, 3)).collect() };
    let all = |places: [usize; 13]| -> Vec<Option<usize>> { places.map(Some).to_vec() };
    assert_eq!(places(Fill::Nearest), all([0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]));
    assert_eq!(places(Fill::Reflect), all([1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1]));
    assert_eq!(places(Fill::Wrap), all([1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]));
    let inside = places(Fill::Constant(1.0));
    assert_eq!(inside.iter().flatten().count(), 3);
    assert_eq!(inside[5..8], [Some(0), Some(1), Some(2)]);
    assert_eq!(Fill::Nearest.place(i64::MIN, 3), Some(0));
    assert_eq!(Fill::Wrap.place(i64::MAX, 0), None);
}

#[test]
fn flips_are_drawn_for_half_the_rows() {
    let counts = first_channels(Step::FlipHorizontal);
    assert_eq!(counts.len(), 2);
    let flipped = counts[&bits([3., 2., 1., 0., 13., 12., 11., 10., 23., 22., 21., 20.])];
    assert!((430..570).contains(&flipped), "{flipped}");
    let counts = first_channels(Step::FlipVertical);
    let flipped = counts[&bits([20., 21., 22., 23., 10., 11., 12., 13., 0., 1., 2., 3.])];
    assert!((430..570).contains(&flipped), "{flipped}");
}

#[test]
fn crops_take_every_part() {
    let crop =
        |padding| Step::RandomCrop { height: 2, width: 3, padding, fill: Fill::Constant(-1.0) };
    let counts = first_channels(crop(0));
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|count| (180..320).contains(count)), "{counts:?}");
    assert!(counts.contains_key(&bits([11., 12., 13., 21., 22., 23.])));
    let counts = first_channels(crop(1));
    assert_eq!(counts.len(), 16);
    assert!(counts.contains_key(&bits([-1., -1., -1., -1., 0., 1.])));
    let centre = Step::CentreCrop { height: 2, width: 2 };
    let made = apply(&images(vec![centre]), image(), 0);
    assert_eq!(made.as_slice::<f32>(), [1., 2., 11., 12., 101., 102., 111., 112.]);
}

#[test]
fn numbers_are_normalised_in_either_layout() {
    let mean = Tensor::new(&[2, 3, 4], &[1.0f32; 24]).unwrap();
    let steps = vec![
        Step::Subtract(mean),
        Step::Scale(0.5),
        Step::Normalise { mean: vec![1.0, 2.0], deviation: vec![2.0, 4.0] },
    ];
    let first = apply(&images(steps), image(), 0);
    let expected: Vec<f32> = image()
        .as_slice::<f32>()
        .iter()
        .enumerate()
        .map(|(i, x)| {
            ((x - 1.0) * 0.5 - if i < 12 { 1.0 } else { 2.0 }) / if i < 12 { 2.0 } else { 4.0 }
        })
        .collect();
    assert_eq!(first.as_slice::<f32>(), expected);
    // Channels last and back, by two changes.
    let last = Images { result: Layout::ChannelsLast, ..images(Vec::new()) };
    let turned = apply(&last, image(), 0);
    assert_eq!(turned.dims(), [3, 4, 2]);
    assert_eq!(turned.as_slice::<f32>()[..4], [0., 100., 1., 101.]);
    let mean: Vec<f32> = turned.as_slice::<f32>().to_vec();
    let steps = vec![Step::Subtract(Tensor::new(&[3, 4, 2], &mean).unwrap())];
    let back = Images { layout: Layout::ChannelsLast, ..images(steps) };
    assert_eq!(apply(&back, turned.clone(), 0), Tensor::zeros(DType::F32, &[2, 3, 4]).unwrap());
    // Bytes are numbers from 0 to 255.
    let bytes = Tensor::new(&[1, 1, 2], &[0u8, 255]).unwrap();
    assert_eq!(apply(&images(vec![Step::Scale(2.0)]), bytes, 0).as_slice::<f32>(), [0.0, 510.0]);
    let wide = Tensor::new(&[1, 1, 2], &[0.5f64, -3.0]).unwrap();
    assert_eq!(apply(&images(Vec::new()), wide, 0).as_slice::<f32>(), [0.5, -3.0]);
}

#[test]
fn steps_that_do_not_fit_are_refused() {
    let crop =
        |height, width, padding| Step::RandomCrop { height, width, padding, fill: Fill::Wrap };
    for (step, reason) in [
        (Step::Shift { height: 1.5, width: 0.0, fill: Fill::Wrap }, "from 0 to 1"),
        (Step::Shift { height: f32::NAN, width: 0.0, fill: Fill::Wrap }, "from 0 to 1"),
        (crop(4, 4, 0), "no part of 4 by 4"),
        (crop(0, 4, 0), "no part of 0 by 4"),
        (crop(4, usize::MAX, usize::MAX), "no part"),
        (Step::CentreCrop { height: 3, width: 5 }, "no part of 3 by 5"),
        (Step::Scale(f32::INFINITY), "finite"),
        (Step::Subtract(Tensor::zeros(DType::F32, &[3, 4, 2]).unwrap()), "is not a mean of images"),
        (Step::Normalise { mean: vec![0.0; 3], deviation: vec![1.0; 3] }, "2 channels"),
        (Step::Normalise { mean: vec![0.0; 2], deviation: vec![1.0, 0.0] }, "no deviation of 0"),
    ] {
        let before = [Column::new("x", DType::U8, &[2, 3, 4])];
        let error = images(vec![step]).columns(&before).unwrap_err().to_string();
        assert!(error.starts_with("images of `x`: ") && error.contains(reason), "{error}");
    }
    assert!(images(Vec::new()).columns(&[Column::new("x", DType::U8, &[2, 3])]).is_err());
    assert!(images(Vec::new()).columns(&[Column::new("y", DType::U8, &[2, 3, 4])]).is_err());
}
