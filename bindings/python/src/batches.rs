//! Batches that are cut out of whole arrays, and outputs that are joined again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fanwise::Error;
use fanwise::backend::{Executable, RunOptions, RunOutput};
use fanwise::internal::run_each;
use fanwise::lower::Port;
use fanwise::types::{Dim, Tensor, TensorError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The outputs of a run, or of several, by name.
pub(crate) type Outputs = Vec<(Arc<str>, Tensor)>;

/// Batches of whole arrays.
///
/// An array with rows has all of them on its first axis; any other input has one element for each
/// batch on an axis in front of its own. Outputs are joined on the first axis likewise.
pub(crate) struct Batches {
    arrays: BTreeMap<String, Whole>,
    /// The numbers of the rows, in the order in which batches take them.
    order: Vec<usize>,
    /// The rows of a batch; the last one has what is left.
    batch: usize,
}

/// What batches take their parts of.
struct Whole {
    tensor: Tensor,
    has_rows: bool,
}

/// Whether what is bound to a port has the rows of the batch on its first axis.
fn has_rows(port: &Port) -> bool {
    port.ty.shape.first().is_some_and(|dim| Dim::as_const(dim).is_none())
}

impl Batches {
    /// Batches of `batch` rows in this order for the inputs of a program.
    pub(crate) fn new(
        inputs: BTreeMap<String, Tensor>,
        order: &Tensor,
        batch: usize,
        executable: &dyn Executable,
    ) -> PyResult<Self> {
        let refuse = |reason: String| Err(PyValueError::new_err(reason));
        let rows = order.to_i64().filter(|rows| !rows.is_empty() && batch > 0);
        let numbers = |rows: Vec<i64>| rows.into_iter().map(usize::try_from).collect();
        let Some(Ok(order)) = rows.map(numbers) else {
            return refuse("expected the numbers of rows, and rows of a batch".to_owned());
        };
        let order: Vec<usize> = order;
        let (runs, last) = (order.len().div_ceil(batch), order.iter().max().copied());
        let mut arrays = BTreeMap::new();
        for (name, tensor) in inputs {
            let ports = &executable.program().inputs;
            let has_rows = ports.iter().any(|port| *port.name == *name && has_rows(port));
            let fits = match tensor.dims().first() {
                Some(&rows) if has_rows => last < Some(rows),
                first => first == Some(&runs),
            };
            if !fits {
                return refuse(format!("`{name}` has too few rows, or not one for each batch"));
            }
            arrays.insert(name, Whole { tensor, has_rows });
        }
        Ok(Self { arrays, order, batch })
    }

    /// Runs a program on all of them, one after another; the joined outputs.
    pub(crate) fn run(&self, executable: &dyn Executable) -> Result<Outputs, Error> {
        let mut found: Vec<RunOutput> = Vec::new();
        let runs = self.order.len().div_ceil(self.batch);
        let inputs = (0..runs).map(|run| Ok(((), self.inputs(run)?)));
        let keep = |(), output: RunOutput| {
            found.push(output);
            Ok(())
        };
        run_each::<_, Error>(executable, &RunOptions::default(), inputs, keep)?;
        let ports = executable.program().outputs.iter().enumerate();
        let outputs = ports.map(|(at, port)| {
            let parts: Vec<_> = found.iter().map(|output| &output.outputs[at].1).collect();
            Ok((Arc::clone(&port.name), joined(&parts, has_rows(port))?))
        });
        outputs.collect()
    }

    /// The inputs of a batch.
    fn inputs(&self, run: usize) -> Result<BTreeMap<String, Tensor>, TensorError> {
        let first = run * self.batch;
        let rows = &self.order[first..self.order.len().min(first + self.batch)];
        let part = |(name, whole): (&String, &Whole)| Ok((name.clone(), whole.part(run, rows)?));
        self.arrays.iter().map(part).collect()
    }
}

impl Whole {
    /// The part of one batch.
    fn part(&self, run: usize, rows: &[usize]) -> Result<Tensor, TensorError> {
        let (bytes, dtype) = (self.tensor.bytes(), self.tensor.dtype());
        let inner = &self.tensor.dims()[1..];
        let size = bytes.len() / self.tensor.dims()[0];
        let of = |row: usize| -> Range<usize> { row * size..(row + 1) * size };
        if !self.has_rows {
            return Tensor::from_bytes(dtype, inner, &bytes[of(run)]);
        }
        let mut part = Vec::with_capacity(rows.len() * size);
        for &row in rows {
            part.extend_from_slice(&bytes[of(row)]);
        }
        Tensor::from_bytes(dtype, &[&[rows.len()], inner].concat(), &part)
    }
}

/// Outputs of batches one behind another: their rows, or each as an element.
fn joined(parts: &[&Tensor], has_rows: bool) -> Result<Tensor, TensorError> {
    let first = parts[0];
    let (rows, inner) = if has_rows {
        (parts.iter().map(|part| part.dims()[0]).sum(), &first.dims()[1..])
    } else {
        (parts.len(), first.dims())
    };
    let bytes: Vec<&[u8]> = parts.iter().map(|part| part.bytes()).collect();
    Tensor::from_bytes(first.dtype(), &[&[rows], inner].concat(), &bytes.concat())
}
