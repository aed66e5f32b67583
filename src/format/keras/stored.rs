//! How variables lie in files of before Keras 3, where it is not as they are here.

use super::file::major;
use super::hdf5::Hdf5;
use super::variables::Variable;
use crate::types::invariant::invariant;
use crate::types::{DType, Tensor, TensorError};

/// Layers whose kernels Theano turns by half a turn.
const CONVOLUTIONS: [&str; 6] =
    ["Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "Deconvolution2D", "ConvLSTM2D"];

/// Which version wrote weights, and what computed with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// Whether it is Keras 1.
    pub(super) is_1: bool,
    /// Whether it computed convolutions and not correlations.
    is_theano: bool,
}

/// The datasets that hold a variable.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    /// Their paths, in the order in which they are joined along the last axis.
    pub(super) paths: Vec<String>,
    pub(super) form: Form,
}

/// How a dataset lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// The axes of the variable in the order of the file; none if that is its own.
    order: Vec<usize>,
    /// Along how many of its first axes it begins at the end.
    turned: usize,
}

impl Writer {
    /// The writer of the weights in a group of a file.
    pub(super) fn of(file: &Hdf5, root: &str) -> Result<Self, crate::format::FileError> {
        let version = file.text(root, "keras_version")?;
        let backend = match file.text(root, "backend")? {
            None => file.text("", "backend")?,
            found => found,
        };
        // Keras 1 does not state it beside the weights.
        let is_1 = version.is_none_or(|version| major(&version) == Some(1));
        Ok(Self { is_1, is_theano: backend.as_deref() == Some("theano") })
    }

    /// The datasets of the variables of a layer, of which the file has these.
    pub(super) fn stored(
        self,
        file: &Hdf5,
        variables: &[&Variable],
        datasets: &[String],
    ) -> Result<Vec<Stored>, String> {
        let mut all = Vec::with_capacity(variables.len());
        let mut rest = datasets;
        let mut variables = variables;
        while let [first, ..] = variables {
            let gates = self.gates(file, first, rest);
            // The kernels and the bias of a gate stand together.
            let (own, parts) = if gates.is_empty() { (1, 1) } else { (3, gates.len()) };
            let (Some((these, others)), Some((sets, left))) =
                (variables.split_at_checked(own), rest.split_at_checked(own * parts))
            else {
                return Err(unequal(datasets.len(), all.len() + variables.len()));
            };
            for (at, variable) in these.iter().enumerate() {
                let path = |gate: &usize| sets[gate * own + at].clone();
                let paths: Vec<String> =
                    if gates.is_empty() { sets.to_vec() } else { gates.iter().map(path).collect() };
                let form = self.form(file, variable, &paths[0]);
                all.push(Stored { paths, form });
            }
            (variables, rest) = (others, left);
        }
        if rest.is_empty() { Ok(all) } else { Err(unequal(datasets.len(), all.len())) }
    }

    /// The order in which the file has the gates of a layer, whose first variable is given; none if
    /// they are joined there.
    fn gates(self, file: &Hdf5, variable: &Variable, datasets: &[String]) -> &'static [usize] {
        let gates: &[usize] = match &*variable.layer.0 {
            "GRU" => &[0, 1, 2],
            "LSTM" | "ConvLSTM2D" => &[0, 2, 1, 3],
            _ => &[],
        };
        let whole = || {
            let elements = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let (_, dims) = file.info(datasets.first()?).ok()?;
            Some(elements(&dims)? == elements(variable.ty.shape.as_const()?.as_slice())?)
        };
        let is_apart = self.is_1 && leaf(variable) == "kernel" && whole() == Some(false);
        if is_apart { gates } else { &[] }
    }

    /// How the dataset at a path, which is a variable or a part of it, lies.
    fn form(self, file: &Hdf5, variable: &Variable, path: &str) -> Form {
        let (class, is_first) = (&*variable.layer.0, variable.layer.1);
        let rank = variable.ty.rank();
        if !leaf(variable).ends_with("kernel") || rank < 3 {
            return Form::default();
        }
        let turned = if self.is_theano && CONVOLUTIONS.contains(&class) { rank - 2 } else { 0 };
        if !self.is_1 {
            return Form { order: Vec::new(), turned };
        }
        let taps = || 0..rank - 2;
        let order = match class {
            "Conv2D" | "Conv3D" | "SeparableConv2D" | "ConvLSTM2D" if is_first => {
                [rank - 1, rank - 2].into_iter().chain(taps()).collect()
            }
            "Deconvolution2D" | "Conv2DTranspose" if is_first => {
                [rank - 2, rank - 1].into_iter().chain(taps()).collect()
            }
            "Deconvolution2D" | "Conv2DTranspose" => taps().chain([rank - 1, rank - 2]).collect(),
            "Conv1D" if is_old_conv1d(file, variable, path) => vec![2, 1, 0],
            _ => Vec::new(),
        };
        Form { order, turned }
    }
}

/// Whether the kernel of a convolution along one axis lies as it did before Keras 1.2: `[filters,
/// channels, taps, 1]` and not `[taps, 1, channels, filters]`.
fn is_old_conv1d(file: &Hdf5, variable: &Variable, path: &str) -> bool {
    let dims = file.info(path).map(|(_, dims)| dims);
    let own = variable.ty.shape.as_const();
    let (Ok(dims), Some([taps, channels, filters])) = (dims, own.as_deref()) else {
        return false;
    };
    let new = [*taps, 1, *channels, *filters];
    dims != new && dims == [*filters, *channels, *taps, 1]
}

fn leaf(variable: &Variable) -> &str {
    variable.name.rsplit_once('/').map_or(&variable.name, |(_, leaf)| leaf)
}

fn unequal(file: usize, own: usize) -> String {
    format!("has {file} weights in the file, and {own} in the architecture")
}

impl Form {
    /// The sizes in the file of what has the sizes `dims` here.
    fn dims(&self, dims: &[usize]) -> Vec<usize> {
        if self.order.is_empty() {
            return dims.to_vec();
        }
        self.order.iter().map(|axis| dims[*axis]).collect()
    }

    /// Elements of `size` bytes that have the sizes `dims` here, from the order of the file; or to
    /// that order.
    fn rearranged(&self, bytes: &[u8], dims: &[usize], size: usize, to_file: bool) -> Vec<u8> {
        if self == &Self::default() || bytes.is_empty() {
            return bytes.to_vec();
        }
        let mut result = vec![0; bytes.len()];
        let own: Vec<usize> = (0..dims.len()).collect();
        let order = if self.order.is_empty() { &own } else { &self.order };
        let mut steps = vec![0; dims.len()];
        let mut step = 1;
        for axis in order.iter().rev() {
            steps[*axis] = step;
            step *= dims[*axis];
        }
        let mut index = vec![0; dims.len()];
        for here in 0..bytes.len() / size {
            let place = |axis: usize| {
                if axis < self.turned { dims[axis] - 1 - index[axis] } else { index[axis] }
            };
            let there: usize = (0..dims.len()).map(|axis| place(axis) * steps[axis]).sum();
            let (from, to) = if to_file { (here, there) } else { (there, here) };
            result[to * size..][..size].copy_from_slice(&bytes[from * size..][..size]);
            for axis in (0..dims.len()).rev() {
                index[axis] += 1;
                if index[axis] < dims[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        result
    }
}

/// The last of these sizes: what lies otherwise in a file, or in parts, has axes.
fn row(dims: &[usize]) -> usize {
    *invariant(dims.last(), "that what is rearranged has axes")
}

impl Stored {
    /// Whether the file has the variable as it is here.
    pub(super) fn is_whole(&self) -> bool {
        self.paths.len() == 1 && self.form == Form::default()
    }

    /// The sizes here of each part of what has the sizes `dims`.
    fn part(&self, dims: &[usize]) -> Vec<usize> {
        let mut dims = dims.to_vec();
        if self.paths.len() > 1 {
            let last = dims.last_mut();
            *invariant(last, "that what lies in parts has axes") /= self.paths.len();
        }
        dims
    }

    /// The sizes of each dataset of what has the sizes `dims` here.
    pub(super) fn dims(&self, dims: &[usize]) -> Vec<usize> {
        self.form.dims(&self.part(dims))
    }

    /// What has the sizes `dims`, of the tensors of the file.
    pub(super) fn joined(&self, parts: &[Tensor], dims: &[usize]) -> Result<Tensor, TensorError> {
        let [first, ..] = parts else { return Tensor::from_bytes(DType::F32, dims, &[]) };
        if self.is_whole() {
            return first.clone().reshaped(dims);
        }
        let (size, own) = (first.dtype().bytes(), self.part(dims));
        let turned = parts.iter().map(|part| self.form.rearranged(part.bytes(), &own, size, false));
        let turned: Vec<Vec<u8>> = turned.collect();
        let row = size * row(&own);
        // Without elements there are no rows.
        let rows = turned[0].len() / row.max(1);
        let of = |at: usize| turned.iter().flat_map(move |part| &part[at * row..][..row]);
        let bytes: Vec<u8> = (0..rows).flat_map(of).copied().collect();
        Tensor::from_bytes(first.dtype(), dims, &bytes)
    }

    /// The tensors of the file that a tensor is.
    pub(super) fn apart(&self, tensor: &Tensor) -> Result<Vec<Tensor>, TensorError> {
        if self.is_whole() {
            return Ok(vec![tensor.clone()]);
        }
        let (size, own) = (tensor.dtype().bytes(), self.part(tensor.dims()));
        let row = size * row(&own);
        let count = self.paths.len();
        let mut parts = vec![Vec::new(); count];
        // Without elements there are no rows.
        for (at, chunk) in tensor.bytes().chunks_exact(row.max(1)).enumerate() {
            parts[at % count].extend_from_slice(chunk);
        }
        let part = |part: Vec<u8>| {
            let bytes = self.form.rearranged(&part, &own, size, true);
            Tensor::from_bytes(tensor.dtype(), &self.form.dims(&own), &bytes)
        };
        parts.into_iter().map(part).collect()
    }
}
