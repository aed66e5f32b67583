//! The variables of optimizers in files that have the variables of the model otherwise than here:
//! they lie as those do.

use std::collections::{HashMap, HashSet};

use super::hdf5::Hdf5;
use super::slots::Slots;
use super::stored::Stored;
use super::variables::Variables;
use super::weights::Layout;
use crate::types::{Tensor, TensorError};

/// A trained variable.
struct Trained {
    dims: Vec<usize>,
    stored: Stored,
    /// The numbers of its datasets.
    numbers: Vec<usize>,
}

/// The datasets of the trained variables, in the order of the file.
pub(super) struct State {
    variables: Vec<Trained>,
    /// How many datasets they have.
    count: usize,
}

impl State {
    /// The state of a file; `None` if the variables of its optimizer are as they are here.
    pub(super) fn of(file: &Hdf5, path: &str, variables: &Variables) -> Option<Self> {
        // A file of other weights has no state of them.
        let layout = Layout::of(file, path, variables).ok()?;
        let trained = variables.iter().zip(&layout.places).filter(|(v, _)| v.is_trainable);
        let trained: Vec<_> = trained.collect();
        if trained.iter().all(|(_, stored)| stored.is_whole()) {
            return None;
        }
        let paths = trained.iter().flat_map(|(_, stored)| &stored.paths);
        let known: HashSet<&str> = paths.map(String::as_str).collect();
        let datasets = layout.datasets.iter().filter(|path| known.contains(path.as_str()));
        let numbers: HashMap<&str, usize> =
            datasets.enumerate().map(|(number, path)| (path.as_str(), number)).collect();
        let numbered = trained.into_iter().map(|(variable, stored)| {
            let own = stored.paths.iter().map(|path| numbers.get(path.as_str()).copied());
            let dims = variable.ty.shape.as_const()?.to_vec();
            Some(Trained { dims, stored: stored.clone(), numbers: own.collect::<Option<_>>()? })
        });
        Some(Self { variables: numbered.collect::<Option<_>>()?, count: numbers.len() })
    }

    /// The variables of an optimizer as they are here: some alone, and then each kind of slot for
    /// all variables; none if the file has others.
    pub(super) fn joined(&self, slots: Slots) -> Slots {
        let joined = |chunk: &[Tensor]| {
            let of = |Trained { dims, stored, numbers }: &Trained| {
                let parts = numbers.iter().map(|number| chunk[*number].clone());
                let parts: Vec<Tensor> = parts.collect();
                let sizes = stored.dims(dims);
                // Slots of other sizes are refused with the optimizer.
                parts.iter().all(|part| part.dims() == sizes).then(|| stored.joined(&parts, dims))
            };
            self.variables.iter().map(of).collect::<Option<Result<Vec<_>, TensorError>>>()?.ok()
        };
        let tensors = Self::each(&slots.tensors, self.count, joined);
        // Without variables the optimizer begins anew, and a note says so.
        let tensors = tensors.unwrap_or_default(); // those that do not fit
        Slots { tensors, ..slots }
    }

    /// The variables of an optimizer as the file has them.
    pub(super) fn apart(&self, tensors: &[Tensor]) -> Option<Vec<Tensor>> {
        Self::each(tensors, self.variables.len(), |chunk| {
            let mut all = vec![None; self.count];
            for (of, tensor) in self.variables.iter().zip(chunk) {
                for (number, part) in of.numbers.iter().zip(of.stored.apart(tensor).ok()?) {
                    all[*number] = Some(part);
                }
            }
            all.into_iter().collect()
        })
    }

    /// What `of` makes of each kind of slot, `count` tensors each, behind those that stand alone.
    fn each(
        tensors: &[Tensor],
        count: usize,
        of: impl Fn(&[Tensor]) -> Option<Vec<Tensor>>,
    ) -> Option<Vec<Tensor>> {
        let alone = tensors.iter().take_while(|tensor| tensor.dims().is_empty()).count();
        let (alone, kinds) = tensors.split_at(alone);
        let chunks = kinds.chunks_exact(count.max(1));
        if !chunks.remainder().is_empty() {
            return None;
        }
        let mut all = alone.to_vec();
        for chunk in chunks {
            all.extend(of(chunk)?);
        }
        Some(all)
    }
}
