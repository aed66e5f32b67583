//! The elements of tensors, in all their forms.

use prost::Message;

use super::{floats, graph, ints, load, load_with, model, nodes_of, refusal, value, zeros};
use fanwise::format::Budget;
use fanwise::format::onnx::{ImportError, ImportOptions, import};
use fanwise::internal::initializers;
use fanwise::ir::Model;
use fanwise::types::{DType, Tensor};
use support::proto::tensor_proto::{DataLocation, DataType};
use support::proto::{ModelProto, StringStringEntryProto, TensorProto};

/// A model with the tensor `t` and nothing else.
fn holding(tensor: TensorProto) -> ModelProto {
    model(graph(vec![], vec![tensor], vec![], &["t"]))
}

fn packed(dtype: DataType, dims: &[i64]) -> TensorProto {
    TensorProto {
        raw_data: None,
        data_type: Some(dtype as i32),
        dims: dims.to_vec(),
        ..zeros("t", &[0])
    }
}

fn varints(numbers: &[i64]) -> Vec<bytes::Bytes> {
    let mut run = Vec::new();
    for number in numbers {
        prost::encoding::encode_varint(number.cast_unsigned(), &mut run);
    }
    vec![run.into()]
}

/// The tensor that the output `t` is.
fn read(model: &Model) -> Tensor {
    let value = model.graph.outputs()[0].value;
    match model.graph.node(value.node).op() {
        Some(op) => op.eval(&[]).unwrap().remove(0),
        None => model.weights.get("t").unwrap().clone(),
    }
}

#[test]
fn typed_numbers_are_read() {
    let small = |dtype| TensorProto { int32_data: varints(&[1, 0, 3]), ..packed(dtype, &[3]) };
    for (dtype, expected) in [
        (DataType::Int32, DType::I32),
        (DataType::Int16, DType::I16),
        (DataType::Int8, DType::I8),
        (DataType::Uint16, DType::U16),
        (DataType::Uint8, DType::U8),
    ] {
        let found = read(&load(&holding(small(dtype))).unwrap());
        assert_eq!((found.dtype(), found.to_i64()), (expected, Some(vec![1, 0, 3])));
    }
    let bools = read(&load(&holding(small(DataType::Bool))).unwrap());
    assert_eq!(bools.as_slice::<u8>(), [1, 0, 1]);
    let halves =
        TensorProto { int32_data: varints(&[0x3c00, 0xc000]), ..packed(DataType::Float16, &[2]) };
    assert_eq!(read(&load(&holding(halves)).unwrap()).to_f64(), [1.0, -2.0]);
    let halves = TensorProto { int32_data: varints(&[0x3f80]), ..packed(DataType::Bfloat16, &[1]) };
    assert_eq!(read(&load(&holding(halves)).unwrap()).to_f64(), [1.0]);
    let negative =
        TensorProto { int64_data: varints(&[-5, i64::MIN]), ..packed(DataType::Int64, &[2]) };
    assert_eq!(read(&load(&holding(negative)).unwrap()).to_i64(), Some(vec![-5, i64::MIN]));
    let large = TensorProto { uint64_data: varints(&[-1]), ..packed(DataType::Uint64, &[1]) };
    assert_eq!(read(&load(&holding(large)).unwrap()).as_slice::<u64>(), [u64::MAX]);
    let runs = [1.5f32, -2.0].map(|x| x.to_le_bytes().to_vec().into()).to_vec();
    let split = TensorProto { float_data: runs, ..packed(DataType::Float, &[2]) };
    assert_eq!(read(&load(&holding(split)).unwrap()).to_f64(), [1.5, -2.0]);
    let double = 0.1f64.to_le_bytes().to_vec().into();
    let double = TensorProto { double_data: vec![double], ..packed(DataType::Double, &[]) };
    assert_eq!(read(&load(&holding(double)).unwrap()).as_slice::<f64>(), [0.1]);
}

#[test]
fn wrong_tensors_are_refused() {
    let f32s = |dims: &[i64]| packed(DataType::Float, dims);
    for (tensor, reason) in [
        (f32s(&[-1]), "an axis has the size -1"),
        (f32s(&[2]), "f32[2] takes 8 bytes, but 0 are given"),
        (f32s(&[i64::MAX, i64::MAX]), "is too large"),
        (f32s(&[1; 65]), "65 axes are more than 64"),
        (packed(DataType::String, &[0]), "it holds strings, or depends on strings, which"),
        (TensorProto { data_type: Some(99), ..f32s(&[0]) }, "element type 99 is unknown"),
        (
            TensorProto { double_data: vec![vec![0; 8].into()], ..f32s(&[1]) },
            "given as double_data",
        ),
        (
            TensorProto { float_data: vec![vec![0; 5].into()], ..f32s(&[1]) },
            "5 bytes are not a whole number",
        ),
        (
            TensorProto { int32_data: varints(&[300]), ..packed(DataType::Uint8, &[1]) },
            "300 is not an element of type u8",
        ),
        (
            TensorProto { int64_data: vec![vec![0x80].into()], ..packed(DataType::Int64, &[0]) },
            "varint",
        ),
        (
            TensorProto { data_location: Some(DataLocation::External as i32), ..f32s(&[1]) },
            "has no name",
        ),
    ] {
        let error = refusal(load(&holding(tensor)));
        assert!(error.starts_with("tensor `t`: ") && error.contains(reason), "{error}");
    }
}

#[test]
fn memory_is_charged_before_it_is_taken() {
    // No computer holds this tensor: were it allocated first, the test would die.
    let huge =
        TensorProto { external_data: vec![], ..packed(DataType::Float, &[1 << 20, 1 << 20, 64]) };
    let error = refusal(load(&holding(huge)));
    assert!(error.contains("but 0 are given"), "{error}");
    let options = ImportOptions { max_memory: 1000, ..ImportOptions::default() };
    let two =
        model(graph(vec![], vec![zeros("a", &[200]), zeros("b", &[100])], vec![], &["a", "b"]));
    let error = load_with(&two, &options).unwrap_err();
    let ImportError::Memory(over) = &error else { panic!("{error}") };
    assert_eq!((over.tensor.as_str(), over.asked, over.used, over.limit), ("b", 400, 800, 1000));
    let options = ImportOptions { max_memory: 1200, ..ImportOptions::default() };
    assert!(load_with(&two, &options).is_ok());
}

#[test]
fn elements_may_lie_in_another_file_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    let elements: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(folder.path().join("m.data"), [&[7u8; 16][..], &elements].concat()).unwrap();
    let tensor = TensorProto {
        name: Some("w".to_owned()),
        data_location: Some(DataLocation::External as i32),
        external_data: vec![
            entry("location", "m.data"),
            entry("offset", "16"),
            entry("length", "16"),
        ],
        ..packed(DataType::Float, &[4, 1])
    };
    let nodes = nodes_of("y = MatMul x w");
    let proto = model(graph(vec![value("x", &["N", "4"])], vec![tensor], nodes, &["y"]));
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, proto.encode_to_vec()).unwrap();
    let model = import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(model.weights.get("w").unwrap().to_f64(), [1.0, 2.0, 3.0, 4.0]);
    let read = initializers(&path, &mut Budget::new(1 << 20), &["w"].into()).unwrap();
    assert_eq!(read.get("w"), model.weights.get("w"));
    // From bytes there is no folder.
    assert!(refusal(load(&proto)).contains("the model has no folder"));
    std::fs::write(folder.path().join("m.data"), [7u8; 20]).unwrap();
    let error = refusal(import(&path, &ImportOptions::default()));
    assert!(error.contains("beyond the 20 bytes of `m.data`"), "{error}");
}

#[test]
fn small_integers_and_scalars_stand_in_the_graph() {
    let kind = |tensor: TensorProto| {
        let model = load(&holding(tensor)).unwrap();
        model.graph.params().len()
    };
    assert_eq!(kind(ints("t", &[1, 2, 3])), 0);
    assert_eq!(kind(ints("t", &vec![0; 2000])), 1);
    assert_eq!(kind(floats("t", &[], &[0.5])), 0);
    assert_eq!(kind(floats("t", &[1], &[0.5])), 1);
}
