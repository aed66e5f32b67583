//! Files of ONNX's test data.

use prost::Message;

use crate::proto::TensorProto;

/// The bytes of a tensor with ONNX's number of its element type.
pub fn tensor(name: &str, data_type: i32, dims: &[usize], elements: &[u8]) -> Vec<u8> {
    let dims = dims.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX));
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.collect(),
        data_type: Some(data_type),
        raw_data: Some(elements.to_vec().into()),
        ..TensorProto::default()
    }
    .encode_to_vec()
}
