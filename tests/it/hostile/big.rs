//! Half a gigabyte of weights is read with little more memory than that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use prost::Message;
use support::proto::tensor_proto::DataLocation;
use support::proto::{ModelProto, StringStringEntryProto, TensorProto};

use super::onnx::models::{graph, model, node, value};
use super::watch;

/// Rows and columns of each matrix.
const SIZE: usize = 2560;

/// The matrices: 500 MiB in all.
const COUNT: usize = 20;

/// The matrices of a model that is one file: the test holds them as well.
const WHOLE: usize = 8;

/// The bytes of one matrix.
const BYTES: usize = 4 * SIZE * SIZE;

/// The elements of matrix `i`: a page that repeats.
fn matrix(i: usize) -> Vec<u8> {
    let element = |k: usize| (((i * 31 + k * 7) % 1000) as f32 * 1e-6).to_le_bytes();
    (0..1024).flat_map(element).collect::<Vec<u8>>().repeat(BYTES / 4096)
}

/// A chain of products with `count` matrices.
fn products(count: usize, tensor: impl Fn(usize) -> TensorProto) -> ModelProto {
    let size = i64::try_from(SIZE).expect("a size");
    let weight = |i: usize| TensorProto {
        name: Some(format!("w{i}")),
        dims: vec![size, size],
        data_type: Some(1),
        ..tensor(i)
    };
    let product =
        |i: usize| node("MatMul", &[&format!("h{i}"), &format!("w{i}")], &[&format!("h{}", i + 1)]);
    let nodes = (0..count).map(product).collect();
    let inputs = vec![value("h0", &["N", &size.to_string()])];
    model(graph(inputs, (0..count).map(weight).collect(), nodes, &[&format!("h{count}")]))
}

/// Writes the model with its weights in a file beside it.
fn external(folder: &Path) {
    let entry = |key: &str, value: String| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value),
    };
    let tensor = |i: usize| TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: vec![
            entry("location", "m.data".to_owned()),
            entry("offset", (i * BYTES).to_string()),
            entry("length", BYTES.to_string()),
        ],
        ..TensorProto::default()
    };
    std::fs::write(folder.join("m.onnx"), products(COUNT, tensor).encode_to_vec())
        .expect("written");
    let mut data = BufWriter::new(File::create(folder.join("m.data")).expect("made"));
    (0..COUNT).for_each(|i| data.write_all(&matrix(i)).expect("written"));
}

/// Writes the model with its weights in its own file.
fn whole(folder: &Path) {
    let tensor =
        |i: usize| TensorProto { raw_data: Some(matrix(i).into()), ..TensorProto::default() };
    let bytes = products(WHOLE, tensor).encode_to_vec();
    std::fs::write(folder.join("m.onnx"), bytes).expect("written");
}

#[test]
fn weights_are_in_memory_once() {
    let args: Vec<String> = ["run", "m.onnx", "--gpus", "1"].map(str::to_owned).into();
    for (write, kind, count) in [(external as fn(&Path), "external", COUNT), (whole, "raw", WHOLE)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path());
        let end = watch(folder.path(), &args).expect("it ends");
        assert_eq!(end.code, Some(0), "{kind}: {}", end.stderr);
        let (peak, limit) = (end.peak, (count * BYTES) as u64 / 10 * 13);
        assert!(peak > 0 || cfg!(not(target_os = "linux")), "{kind}: the system tells no memory");
        assert!(peak <= limit, "{kind}: {peak} bytes of memory, at most {limit}");
    }
}
