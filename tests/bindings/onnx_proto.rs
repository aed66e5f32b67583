//! The checked-in bindings of `onnx.proto` are what the generator makes of it.

use std::path::Path;
use std::process::Command;

use prost_build::Config;

/// The fields whose packed numbers stay bytes until they are read: a number of one byte on the wire
/// would take eight in memory.
const LAZY: [&str; 5] = ["float_data", "int32_data", "int64_data", "double_data", "uint64_data"];

/// What is never read, and the fields that hold it.
const UNREAD: [&str; 10] = [
    "DeviceConfigurationProto",
    "IntIntListEntryProto",
    "NodeDeviceConfigurationProto",
    "OperatorStatus",
    "ShardedDimProto",
    "ShardingSpecProto",
    "SimpleShardedDimProto",
    "TensorAnnotation",
    "TrainingInfoProto",
    "Version",
];

const CHECKED_IN: &str = "../../src/format/onnx/proto.rs";

fn generate(out: &Path) -> String {
    let mut files = protox::compile(["onnx.proto"], ["../../src/format/onnx/proto"]).unwrap();
    let unread = |ty: &str| UNREAD.contains(&ty.trim_start_matches(".onnx."));
    for file in &mut files.file {
        file.message_type.retain(|message| !unread(message.name()));
        file.enum_type.retain(|kind| !unread(kind.name()));
        let fields = file.message_type.iter_mut().map(|message| &mut message.field);
        fields.for_each(|fields| fields.retain(|field| !unread(field.type_name())));
    }
    let messages = files.file.iter_mut().flat_map(|file| &mut file.message_type);
    for tensor in messages.filter(|m| m.name() == "TensorProto") {
        for field in tensor.field.iter_mut().filter(|f| LAZY.contains(&f.name())) {
            field.set_type(prost_types::field_descriptor_proto::Type::Bytes);
            field.options = None;
        }
    }
    let mut config = Config::new();
    config.bytes(["."]).disable_comments(["."]).out_dir(out).compile_fds(files).unwrap();
    let written = out.join("onnx.rs");
    let formatted = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")])
        .arg(&written)
        .status();
    assert!(formatted.expect("rustfmt runs").success());
    std::fs::read_to_string(written).unwrap()
}

#[test]
fn bindings_are_generated() {
    let out = tempfile::tempdir().unwrap();
    let fresh = generate(out.path());
    let checked_in = std::fs::read_to_string(CHECKED_IN).unwrap_or_default();
    if fresh != checked_in {
        let copy = Path::new("../../target/onnx_proto.rs");
        std::fs::write(copy, fresh).unwrap();
        panic!(
            "{CHECKED_IN} differs from what onnx.proto gives; compare it with {}",
            copy.display()
        );
    }
}
