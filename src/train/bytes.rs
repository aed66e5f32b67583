//! Inputs that come as bytes, of which devices make numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::data::{Change as _, Column, DataError, Images, Layout, Step};
use crate::Error;
use crate::ir::{Builder, Graph, Value, Weights};
use crate::op::Formula;
use crate::types::{DType, Quoted, Tensor, TensorType};

/// The graph with these inputs as bytes, of which it makes the numbers that they were before, as
/// the steps of images do.
///
/// # Errors
/// If there is no such input, it has no `f32`, or a step is not of each pixel.
pub(super) fn taken<'a>(
    graph: &'a Graph,
    bytes: &BTreeMap<String, Images>,
) -> Result<Cow<'a, Graph>, Error> {
    if bytes.is_empty() {
        return Ok(Cow::Borrowed(graph));
    }
    let mut graph = graph.clone();
    for (name, images) in bytes {
        let input = graph.inputs().find(|input| *graph.info(*input).name == **name);
        let input = input.filter(|input| graph.ty(*input).dtype == DType::F32);
        let Some(input) = input else {
            let reason = format!("the model has no input {} of f32 to take bytes", Quoted(name));
            return Err(DataError::Setting(reason).into());
        };
        let ty = TensorType::new(DType::U8, graph.ty(input).shape.clone());
        check(images, &ty)?;
        let mut b = Builder::over(graph, Weights::default());
        // It has the name that the other one leaves.
        let x = b.input(name, ty);
        let numbers = numbers(&mut b.named(name), x, images)?;
        (graph, _) = b.finish();
        graph.replace(input, numbers)?;
        graph.take_input(input);
    }
    graph.remove_unused();
    Ok(Cow::Owned(graph))
}

/// Fails where steps do not fit the rows of an input, as in the loader: means and deviations of
/// channels that there are, and no deviation of 0.
fn check(images: &Images, ty: &TensorType) -> Result<(), Error> {
    if let Some(column) = Column::of(&*images.column, ty).filter(|_| !images.steps.is_empty()) {
        let of_result = Images { layout: images.result, ..images.clone() };
        of_result.columns(&[column])?;
    }
    Ok(())
}

/// The numbers that the steps make of bytes.
fn numbers<B: Formula<Value = Value>>(b: &mut B, x: Value, images: &Images) -> Result<Value, Error>
where
    Error: From<B::Error>,
{
    let mut x = b.convert(x, DType::F32)?;
    for step in &images.steps {
        match step {
            Step::Scale(by) => {
                let by = b.literal(Tensor::scalar(*by))?;
                x = b.mul(x, by)?;
            }
            Step::Normalise { mean, deviation } => {
                let of_channels = |numbers: &[f32]| match images.result {
                    Layout::ChannelsFirst => Tensor::new(&[numbers.len(), 1, 1], numbers),
                    Layout::ChannelsLast => Tensor::new(&[numbers.len()], numbers),
                };
                let mean = b.literal(of_channels(mean).map_err(DataError::from)?)?;
                let deviation = b.literal(of_channels(deviation).map_err(DataError::from)?)?;
                let centred = b.sub(x, mean)?;
                x = b.div(centred, deviation)?;
            }
            Step::Shift { .. }
            | Step::FlipHorizontal
            | Step::FlipVertical
            | Step::RandomCrop { .. }
            | Step::CentreCrop { .. }
            | Step::Subtract(_) => {
                let reason = format!("{step:?} is not of each pixel; devices do not do it");
                return Err(DataError::Setting(reason).into());
            }
        }
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::taken;
    use crate::backend::{Backend as _, Cpu, RunOptions};
    use crate::ir::{Builder, Weights};
    use crate::op::Unary;
    use crate::train::data::{Change, Column, Images, Layout, RowKey, Step};
    use crate::types::{DType, Dim, Shape, Tensor, TensorType};

    /// What devices make of bytes has the bits of what the loader makes of them, whichever axis the
    /// channels are on.
    #[test]
    fn devices_make_the_numbers_of_the_loader() {
        let pixels: Vec<u8> = (0..24).map(|i| i * 11).collect();
        let normal = Step::Normalise { mean: vec![0.3, 91.7], deviation: vec![0.7, 33.1] };
        let crop = Step::CentreCrop { height: 2, width: 2 };
        let steps = vec![Step::Scale(1.0 / 255.0), crop, normal];
        for (layout, result) in [
            (Layout::ChannelsFirst, Layout::ChannelsFirst),
            (Layout::ChannelsLast, Layout::ChannelsFirst),
            (Layout::ChannelsFirst, Layout::ChannelsLast),
        ] {
            let column = Column::new("x", DType::U8, &layout.dims(2, 3, 4));
            let before = [column];
            let all = Images { column: "x".to_owned(), layout, result, steps: steps.clone() };
            let [moved, computed] = all.on_bytes(&before).unwrap();
            let made = |images: &Images| {
                let columns = images.columns(&before).unwrap();
                let mut row = vec![Tensor::new(&before[0].dims, &pixels).unwrap()];
                images.apply(&RowKey::default(), &before, &mut row).unwrap();
                assert_eq!(columns[0].row_type(), row[0].tensor_type());
                let dims = [&[1], &columns[0].dims[..]].concat();
                row.remove(0).reshaped(&dims).unwrap()
            };
            let [wanted, bytes] = [made(&all), made(&moved)];
            assert_eq!((wanted.dtype(), bytes.dtype()), (DType::F32, DType::U8));

            let mut b = Builder::new("model");
            let sizes = result.dims(2, 2, 2).map(|size| Dim::from(i64::try_from(size).unwrap()));
            let shape: Shape = std::iter::once(Dim::n()).chain(sizes).collect();
            let x = b.input("x", TensorType::new(DType::F32, shape));
            let y = b.op("y", Unary::Neg, &[x]).unwrap();
            b.output("y", y);
            let (graph, _) = b.finish();
            let graph = taken(&graph, &BTreeMap::from([("x".to_owned(), computed)])).unwrap();
            let run = Cpu::new(1).unwrap().ready(&graph, &Weights::default()).unwrap();
            let given = BTreeMap::from([("x".to_owned(), bytes)]);
            let found = run.run(&given, &RunOptions::default()).unwrap().outputs;
            let negative = |x: &f32| -x;
            let wanted: Vec<f32> = wanted.as_slice::<f32>().iter().map(negative).collect();
            assert_eq!(found[0].1, Tensor::new(found[0].1.dims(), &wanted).unwrap());
        }
    }

    #[test]
    fn what_devices_do_not_make_of_bytes_is_refused() {
        let mut b = Builder::new("model");
        let x = b.input("x", TensorType::new(DType::F32, &[Dim::n(), 3.into()][..]));
        b.output("y", x);
        let (graph, _) = b.finish();
        let of = |name: &str, steps| {
            let layout = Layout::ChannelsFirst;
            let images = Images { column: name.to_owned(), layout, result: layout, steps };
            let refused = taken(&graph, &BTreeMap::from([(name.to_owned(), images)]));
            refused.err().map_or(String::new(), |error| error.to_string())
        };
        assert!(of("z", Vec::new()).contains("no input `z` of f32"));
        assert_eq!(of("x", Vec::new()), "");
        let mut b = Builder::new("model");
        let x = b.input("x", "f32[N,2,4,4]".parse().unwrap());
        b.output("y", x);
        let graph = b.finish().0;
        let of = |step| {
            let (layout, column) = (Layout::ChannelsFirst, "x".to_owned());
            let images = Images { column, layout, result: layout, steps: vec![step] };
            let refused = taken(&graph, &BTreeMap::from([("x".to_owned(), images)]));
            refused.err().map_or(String::new(), |error| error.to_string())
        };
        let normal = |mean: &[f32], deviation: &[f32]| Step::Normalise {
            mean: mean.to_vec(),
            deviation: deviation.to_vec(),
        };
        assert!(of(Step::FlipVertical).contains("FlipVertical"));
        assert_eq!(of(normal(&[1.0, 2.0], &[1.0, 2.0])), "");
        assert!(of(normal(&[1.0], &[1.0])).contains("2 channels"));
        assert!(of(normal(&[1.0, 2.0], &[1.0, 0.0])).contains("no deviation of 0"));
    }
}
