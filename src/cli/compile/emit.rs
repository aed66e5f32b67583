//! What `fanwise compile` is asked to write: kinds, and the files that they are written to.

use std::path::PathBuf;
use std::str::FromStr;

use crate::codegen::CodeFormat;
use crate::ir::picture::Level;
use crate::types::{Quoted, closest};
use anyhow::{anyhow, bail};

use crate::cli::kernels::Kernels;
use crate::cli::paths::{has_ending, is_of_other_form};
use crate::cli::trace::PlanForm;

/// One thing to print, and where.
#[derive(Clone)]
pub(super) struct Emit {
    pub(super) kind: Kind,
    /// Applies to the training step instead of the model.
    pub(super) training: bool,
    pub(super) path: Option<PathBuf>,
}

/// What is written of a model or of a training step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Graph,
    GraphInput,
    GraphRepaired,
    Claims,
    Explain,
    Json,
    Dot,
    Svg(Level),
    Html(Level),
    Program,
    Memory,
    Timeline,
    Kernels(Kernels),
    Summary,
    Onnx,
}

/// The kinds by their names.
pub(super) const KINDS: [(&str, Kind); 19] = [
    ("graph", Kind::Graph),
    ("graph:input", Kind::GraphInput),
    ("graph:repaired", Kind::GraphRepaired),
    ("claims", Kind::Claims),
    ("explain", Kind::Explain),
    ("json", Kind::Json),
    ("dot", Kind::Dot),
    ("svg", Kind::Svg(Level::Layers)),
    ("svg:operators", Kind::Svg(Level::Operators)),
    ("html", Kind::Html(Level::Layers)),
    ("html:operators", Kind::Html(Level::Operators)),
    ("program", Kind::Program),
    ("memory", Kind::Memory),
    ("timeline", Kind::Timeline),
    ("cuda", Kind::Kernels(Kernels::Text)),
    ("ptx", Kind::Kernels(Kernels::Compiled(CodeFormat::Ptx))),
    ("cubin", Kind::Kernels(Kernels::Compiled(CodeFormat::Cubin))),
    ("summary", Kind::Summary),
    ("onnx", Kind::Onnx),
];

/// What makes a kind one of the training step.
const OF_TRAINING: &str = ":training";

/// The error for an unknown kind.
fn unknown(text: &str) -> anyhow::Error {
    let stem = text.strip_suffix(OF_TRAINING).unwrap_or(text);
    let names = KINDS.iter().map(|(name, _)| *name);
    let is_known = names.clone().any(|name| name == stem);
    let why = match closest(stem, names.clone()).filter(|_| !is_known) {
        Some(name) => format!(" (did you mean `{name}`?)"),
        None if is_known => " (it does not exist for training steps)".to_owned(),
        None => String::new(),
    };
    let of_step = KINDS.iter().filter(|(_, kind)| kind.is_of_training());
    let of_step: Vec<String> = of_step.map(|(name, _)| format!("{name}{OF_TRAINING}")).collect();
    let (all, of_step) = (names.collect::<Vec<_>>().join(", "), of_step.join(", "));
    anyhow!("unknown kind {}{why}; the kinds are {all}; for training steps {of_step}", Quoted(text))
}

impl Kind {
    /// Returns true if it exists for training steps, too.
    fn is_of_training(self) -> bool {
        use Kind::{Claims, Explain, GraphInput, GraphRepaired, Onnx, Summary};
        !matches!(self, GraphInput | GraphRepaired | Claims | Explain | Summary | Onnx)
    }

    /// The endings of the names of its files; none where it writes a folder.
    fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Graph | Self::GraphInput | Self::GraphRepaired => &["fan"],
            Self::Claims | Self::Explain | Self::Program | Self::Summary => &["txt"],
            Self::Json => &["json"],
            Self::Dot => &["dot", "gv"],
            Self::Svg(_) => &["svg"],
            Self::Html(_) => &["html"],
            Self::Memory => &["svg", "html", "txt"],
            Self::Timeline => &["svg", "html"],
            Self::Kernels(_) => &[],
            Self::Onnx => &["onnx"],
        }
    }
}

/// What a text shows to people, who may read symbols for sizes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Model,
    Split,
}

impl Emit {
    /// The form of a memory plan or a timeline.
    pub(super) fn form(&self) -> anyhow::Result<PlanForm> {
        let is_table = self.kind == Kind::Memory;
        match &self.path {
            Some(path) if is_table => PlanForm::of_memory(path),
            Some(path) => PlanForm::of_timeline(path),
            None => Ok(if is_table { PlanForm::Table } else { PlanForm::Svg }),
        }
    }

    /// Fails where the name of the file says that it is something else than this kind writes.
    fn check_file(&self, kind: &str) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if matches!(self.kind, Kind::Memory | Kind::Timeline) {
            return self.form().map(drop);
        }
        let (shown, fitting) = (path.display(), self.kind.endings());
        if has_ending(path, fitting) {
            return Ok(());
        }
        match self.kind {
            Kind::Svg(_) => {
                bail!("cannot draw to {shown}: `svg` pictures are .svg files; name one")
            }
            Kind::Html(_) => {
                bail!("cannot draw to {shown}: `html` pictures are .html files; name one")
            }
            Kind::Onnx => bail!("cannot write to {shown}: ONNX models are .onnx files; name one"),
            Kind::Graph
            | Kind::GraphInput
            | Kind::GraphRepaired
            | Kind::Claims
            | Kind::Explain
            | Kind::Json
            | Kind::Dot
            | Kind::Program
            | Kind::Memory
            | Kind::Timeline
            | Kind::Kernels(_)
            | Kind::Summary => {}
        }
        if !is_of_other_form(path, fitting) {
            return Ok(());
        }
        let owner = KINDS.iter().find(|(_, other)| has_ending(path, other.endings()));
        let owner = owner.map_or("something else".to_owned(), |(name, _)| format!("`{name}`"));
        let way = match fitting {
            [] => "name a folder".to_owned(),
            _ => format!("use .{}", fitting.join(" or .")),
        };
        bail!("cannot write `{kind}` to {shown}: such a name is for {owner}; {way}")
    }

    /// What it shows to people. Files of graphs are read back and compared with their model, so
    /// their sizes are numbers.
    pub(super) fn shows(&self) -> Option<Shown> {
        let is_file = self.path.is_some();
        match self.kind {
            _ if self.training => None,
            Kind::Summary => Some(Shown::Model),
            Kind::Claims | Kind::Explain => Some(Shown::Split),
            Kind::GraphInput if !is_file => Some(Shown::Model),
            Kind::Graph | Kind::GraphRepaired if !is_file => Some(Shown::Split),
            Kind::GraphInput
            | Kind::Graph
            | Kind::GraphRepaired
            | Kind::Json
            | Kind::Dot
            | Kind::Svg(_)
            | Kind::Html(_)
            | Kind::Program
            | Kind::Memory
            | Kind::Timeline
            | Kind::Kernels(_)
            | Kind::Onnx => None,
        }
    }
}

impl FromStr for Emit {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, path) = match text.split_once('=') {
            Some((_, "")) => bail!("`{text}` has no file name after `=`"),
            Some((kind, path)) => (kind, Some(PathBuf::from(path))),
            None => (text, None),
        };
        let (name, training) = match kind.strip_suffix(OF_TRAINING) {
            Some(name) => (name, true),
            None => (kind, false),
        };
        let found = KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        let found = found.filter(|found| !training || found.is_of_training());
        let emit = Self { kind: found.ok_or_else(|| unknown(kind))?, training, path };
        emit.check_file(kind)?;
        Ok(emit)
    }
}

#[cfg(test)]
mod tests {
    use super::Emit;

    #[test]
    fn names_of_other_forms_are_refused() {
        let told = |text: &str| text.parse::<Emit>().err().map(|error| error.to_string());
        for text in [
            "graph=m.fan",
            "graph=m",
            "graph:repaired=m.FAN",
            "graph:training=m.txt",
            "dot=m.gv",
            "program=m.log",
            "json=m.json",
            "claims=m.txt",
            "onnx=m.onnx",
            "cuda=kernels.d",
            "summary",
        ] {
            assert_eq!(told(text), None, "{text}");
        }
        for (text, why) in [
            ("dot=p.png", "`dot` to p.png: such a name is for something else; use .dot or .gv"),
            ("dot=out.svg", "`dot` to out.svg: such a name is for `svg`; use .dot or .gv"),
            ("program=p.SVG", "`program` to p.SVG: such a name is for `svg`; use .txt"),
            ("graph:repaired=g.onnx", "such a name is for `onnx`; use .fan"),
            ("graph:training=g.json", "`graph:training` to g.json: such a name is for `json`"),
            ("json=p.fan", "such a name is for `graph`; use .json"),
            ("ptx=k.ptx", "such a name is for something else; name a folder"),
            ("onnx=p.txt", "cannot write to p.txt: ONNX models are .onnx files; name one"),
            ("onnx=p", "ONNX models are .onnx files"),
            ("svg=p", "`svg` pictures are .svg files"),
        ] {
            let told = told(text).unwrap_or_default();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
