//! Data to train on in files that others wrote.

use std::path::Path;

use fanwise::format::Budget;
use fanwise::internal::row;
use fanwise::train::data::{Arrays, Source};

use crate::onnx_runtime::read;
use crate::python::python;

/// The rows of `source` are those of the arrays in `expected.npz`; the array `of` under the name
/// `x`, if it is given.
fn compare(source: &Arrays, folder: &Path, of: Option<&str>) {
    let expected = read(&folder.join("expected.npz"));
    assert_eq!(source.rows(), 50);
    assert_eq!(source.columns().len(), of.map_or(expected.len(), |_| 1));
    for number in 0..source.rows() {
        let cells = row(source, number).expect("a row");
        for (column, cell) in source.columns().iter().zip(cells) {
            let whole = &expected[of.unwrap_or(&column.name)];
            let bytes = cell.bytes().len();
            assert_eq!(cell.dtype(), whole.dtype());
            assert_eq!(cell.dims(), &whole.dims()[1..]);
            assert_eq!(cell.bytes(), &whole.bytes()[number * bytes..][..bytes], "{}", column.name);
        }
    }
}

#[test]
#[ignore = "needs Python: cargo xtask test"]
fn files_of_numpy_are_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    python("data.py", &[folder.path()]);
    let path = |name: &str| folder.path().join(name);
    // What is in another order is read, the rest is mapped.
    let mut budget = Budget::new(1 << 20);
    compare(&Arrays::npz(&path("stored.npz"), &mut budget).expect("arrays"), folder.path(), None);
    assert_eq!(budget.used(), 50 * (2 * 4 + 5 * 2 * 8));
    let mut budget = Budget::new(1 << 20);
    compare(&Arrays::npz(&path("deflated.npz"), &mut budget).expect("arrays"), folder.path(), None);
    assert!(budget.used() > 50 * 2000);
    let x = Arrays::npy(&path("x.npy"), &mut budget).expect("an array");
    compare(&x, folder.path(), Some("turned"));
}
