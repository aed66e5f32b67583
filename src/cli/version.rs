//! The output of `--version`.

use std::sync::LazyLock;

/// The version alone, as `-V` and the man pages show it.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// The features of this build.
const FEATURES: [(&str, bool); 8] = [
    ("cli", cfg!(feature = "cli")),
    ("cpu", cfg!(feature = "cpu")),
    ("cuda", cfg!(feature = "cuda")),
    ("images", cfg!(feature = "images")),
    ("keras", cfg!(feature = "keras")),
    ("onnx", cfg!(feature = "onnx")),
    ("train", cfg!(feature = "train")),
    ("zoo", cfg!(feature = "zoo")),
];

/// The version, the commit that the program was built from, and its features.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("FANWISE_BUILT_FROM").unwrap_or("commit unknown");
        let features: Vec<&str> = FEATURES.iter().filter(|(_, on)| *on).map(|(n, _)| *n).collect();
        format!("{SHORT} ({commit}, features: {})", features.join(" "))
    });
    &LONG
}
