//! Images per second that a loader makes of CIFAR's bytes with augmentation, and of JPEG files that
//! it decodes and brings to another size.

#![allow(missing_docs, reason = "criterion's macros declare undocumented functions")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanwise::internal::Change;
use fanwise::internal::{Cifar, Folder};
use fanwise::train::data::{
    Data, Fill, FolderOptions, Images, Layout, Loader, LoaderOptions, Position, Source, Statistics,
    Step,
};

/// The images of a CIFAR file that is made up.
const IMAGES: usize = 4096;

/// The JPEG files of a folder that is made up.
const FILES: usize = 128;

fn cifar() -> Cifar {
    let byte = |i: usize| if i.is_multiple_of(3073) { i / 3073 % 10 } else { i * i / 7 % 256 };
    let bytes: Vec<u8> =
        (0..IMAGES * 3073).map(|i| u8::try_from(byte(i)).expect("a byte")).collect();
    Cifar::of(Path::new("data_batch_1.bin"), bytes.into()).expect("images")
}

/// What is usual for CIFAR: shifts by a tenth, flips, and the mean of the pixels subtracted before.
fn augmented(source: &dyn Source) -> Arc<dyn Change> {
    let mean = Statistics::of(source, "x").and_then(|found| found.mean()).expect("a mean");
    let shift = Step::Shift { height: 0.1, width: 0.1, fill: Fill::Nearest };
    let layout = Layout::ChannelsFirst;
    let steps = vec![Step::Subtract(mean), shift, Step::FlipHorizontal];
    Arc::new(Images { column: "x".to_owned(), layout, result: layout, steps })
}

fn epoch(loader: &Arc<Loader>) -> usize {
    let batches = loader.batches(Position::default(), 1).expect("a thread");
    batches.map(|batch| batch.expect("a batch").rows).sum()
}

fn loaders(c: &mut Criterion) {
    let mut group = c.benchmark_group("data");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    let source = Arc::new(cifar());
    let change = augmented(source.as_ref());
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("class")).expect("a folder");
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/images/subsampled.jpg");
    for i in 0..FILES {
        let to = folder.path().join(format!("class/{i}.jpg"));
        fs::copy(&image, to).expect("a copy");
    }
    let files = Folder::new(folder.path(), FolderOptions::new(64, 64)).expect("images");
    let files = Arc::new(files);
    for threads in [1usize, 2] {
        let options =
            LoaderOptions { batch: 64, shuffle: true, threads, ..LoaderOptions::default() };
        let data = Data::from(source.clone()).changed(change.clone());
        let loader = Loader::new(data, options.clone()).expect("a loader");
        group.throughput(Throughput::Elements(IMAGES as u64));
        let id = BenchmarkId::new("cifar shifted and flipped, threads", threads);
        group.bench_function(id, |b| b.iter(|| epoch(&loader)));
        let loader = Loader::new(files.clone(), options).expect("a loader");
        group.throughput(Throughput::Elements(FILES as u64));
        let id = BenchmarkId::new("jpeg of 37 by 45 to 64 by 64, threads", threads);
        group.bench_function(id, |b| b.iter(|| epoch(&loader)));
    }
    group.finish();
}

criterion_group!(benches, loaders);
criterion_main!(benches);
