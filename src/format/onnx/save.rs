//! An ONNX file with other elements of its initializers; everything else is as in the file.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::proto::TensorProto;
use super::wire::{self, Span};
use super::{ImportError, external, file, store, tensor};
use crate::format::Budget;
use crate::types::Tensor;

/// The bytes that a file of protocol buffers may have.
pub(super) const MOST: usize = i32::MAX as usize;

fn wrong(name: &str, reason: &str) -> ImportError {
    ImportError::Tensor { tensor: name.to_owned(), reason: reason.to_owned() }
}

/// The names of the initializers of the model at `path`.
///
/// # Errors
/// If the file is no model.
pub(crate) fn initializer_names(path: &Path, max_memory: u64) -> Result<Vec<String>, ImportError> {
    let store = store::Store::open(path, &Budget::new(max_memory))?;
    let file = file::File::new(external::Folder::of(path, store).structure())?;
    let names = file.graph.initializers.iter().map(|span| Ok(file.tensor_name(*span)?.to_owned()));
    names.collect()
}

/// The model at `path` with the elements `tensors` of its initializers, by name, which have their
/// types. All lie in the file, also those that lay in others.
///
/// # Errors
/// If the file is no model, has no such initializer, or one of another type, or the result is
/// larger than a file of this form may be.
pub(crate) fn with_initializers(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    max_memory: u64,
) -> Result<Vec<u8>, ImportError> {
    let mut budget = Budget::new(max_memory);
    let mut folder = external::Folder::of(path, store::Store::open(path, &budget)?);
    let file = file::File::new(folder.structure())?;
    let mut replaced = BTreeMap::new();
    for span in &file.graph.initializers {
        let (name, proto) = (file.tensor_name(*span)?, file.tensor(*span)?);
        let elements = match tensors.get(name) {
            Some(given) => {
                let dims = tensor::dims(&proto.dims).ok();
                let dtype = tensor::element(proto.data_type().into());
                if dims.as_deref() != Some(given.dims()) || dtype != Ok(given.dtype()) {
                    return Err(wrong(name, "the elements given are of another type"));
                }
                given.clone()
            }
            None if proto.external_data.is_empty() => continue,
            None => tensor::read(&proto, name, &mut folder, &mut budget)?,
        };
        replaced.insert(span.range().start, (name.to_owned(), encoded(proto, &elements)));
    }
    let has = |name: &String| replaced.values().any(|(own, _)| own == name);
    if let Some(name) = tensors.keys().find(|name| !has(name)) {
        return Err(wrong(name, "it is not an initializer of the file"));
    }
    // What stays is copied with its elements.
    let data = folder.whole();
    let whole = Span::new(0..data.len())?;
    let tensor = |number: u64, span: Span| {
        let found = replaced.get(&span.range().start).filter(|_| number == 5);
        Ok(found.map(|(_, bytes)| bytes.clone()))
    };
    let bytes = wire::rewritten(&data, whole, |number, span| match number {
        7 => Ok(Some(wire::rewritten(&data, span, tensor)?)),
        _ => Ok(None),
    })?;
    folder.check()?;
    if bytes.len() > MOST {
        return Err(wrong("", "an ONNX file has at most 2 GiB"));
    }
    Ok(bytes)
}

/// The message of a tensor with these elements, as raw bytes.
fn encoded(proto: TensorProto, elements: &Tensor) -> Vec<u8> {
    let proto = TensorProto {
        raw_data: Some(Bytes::copy_from_slice(elements.bytes())),
        float_data: Vec::new(),
        int32_data: Vec::new(),
        int64_data: Vec::new(),
        double_data: Vec::new(),
        uint64_data: Vec::new(),
        external_data: Vec::new(),
        data_location: None,
        ..proto
    };
    proto.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use prost::Message;

    use super::with_initializers;
    use crate::format::onnx::proto::{GraphProto, ModelProto, TensorProto};
    use crate::types::Tensor;

    fn initializer(name: &str, elements: &[f32]) -> TensorProto {
        TensorProto {
            name: Some(name.to_owned()),
            dims: vec![i64::try_from(elements.len()).unwrap()],
            data_type: Some(1),
            raw_data: Some(
                elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into(),
            ),
            ..TensorProto::default()
        }
    }

    #[test]
    fn what_is_not_given_stays_however_large() {
        let large: Vec<f32> = (0..40_000u16).map(f32::from).collect();
        let initializers = vec![initializer("large", &large), initializer("small", &[1.0, 2.0])];
        let graph = GraphProto { initializer: initializers, ..GraphProto::default() };
        let model = ModelProto { ir_version: Some(8), graph: Some(graph), ..ModelProto::default() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let given = Tensor::new(&[2], &[3.0f32, 4.0]).unwrap();
        let given = BTreeMap::from([("small".to_owned(), given)]);
        let written = with_initializers(&path, &given, u64::MAX).unwrap();
        let found = ModelProto::decode(Bytes::from(written)).unwrap().graph.unwrap().initializer;
        assert_eq!(found[0], initializer("large", &large));
        assert_eq!(found[1].raw_data, initializer("small", &[3.0, 4.0]).raw_data);
    }
}
