use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Dim, MAX_SIZE};

/// The most axes of a tensor in a file; `NumPy` has the same limit.
pub(crate) const MAX_RANK: usize = 64;

/// The sizes of a tensor's axes, outermost first; shared until they are written to.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape(Arc<SmallVec<[Dim; 4]>>);

impl Shape {
    /// The shape of a scalar.
    pub(crate) fn scalar() -> Self {
        Self::default()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The product of the sizes; 1 for a scalar.
    pub fn elements(&self) -> Dim {
        self.0.iter().fold(Dim::ONE, |product, d| product * d.clone())
    }

    /// Appends an axis.
    pub(crate) fn push(&mut self, dim: Dim) {
        Arc::make_mut(&mut self.0).push(dim);
    }

    /// Inserts an axis before position `axis`.
    pub(crate) fn insert(&mut self, axis: usize, dim: Dim) {
        Arc::make_mut(&mut self.0).insert(axis, dim);
    }

    /// Removes an axis.
    pub(crate) fn remove(&mut self, axis: usize) -> Dim {
        Arc::make_mut(&mut self.0).remove(axis)
    }

    /// The sizes, where none depends on a symbol.
    pub fn as_const(&self) -> Option<SmallVec<[usize; 4]>> {
        self.0.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
    }

    /// The sizes at a batch of `n` rows; negative sizes count as 0.
    pub fn at(&self, n: i64) -> SmallVec<[usize; 4]> {
        self.0.iter().map(|d| usize::try_from(d.eval(n)).unwrap_or(0)).collect()
    }

    /// The shape with the batch size replaced by `rows`.
    #[must_use]
    pub fn at_rows(&self, rows: &Dim) -> Self {
        self.0.iter().map(|d| d.at_rows(rows)).collect()
    }

    /// True if no size is an overflow or negative and neither a size nor the number of elements
    /// exceeds [`MAX_SIZE`]; a size that depends on a symbol is checked as far as its constants go.
    pub fn is_valid(&self) -> bool {
        let fits = |c: i64| (0..=MAX_SIZE).contains(&c);
        let constants = self.0.iter().filter_map(Dim::as_const);
        let product = constants.clone().fold(1i64, i64::saturating_mul);
        !self.0.iter().any(Dim::is_overflow)
            && constants.clone().all(fits)
            && (fits(product) || constants.clone().any(|c| c == 0))
    }
}

impl Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [Dim] {
        Arc::make_mut(&mut self.0).as_mut_slice()
    }
}

impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(dims: I) -> Self {
        Self(Arc::new(dims.into_iter().collect()))
    }
}

impl<const K: usize> From<[i64; K]> for Shape {
    fn from(dims: [i64; K]) -> Self {
        dims.into_iter().map(Dim::from).collect()
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        dims.iter().map(|d| Dim::from(i64::try_from(*d).unwrap_or(i64::MAX))).collect()
    }
}

impl From<&[Dim]> for Shape {
    fn from(dims: &[Dim]) -> Self {
        dims.iter().cloned().collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
