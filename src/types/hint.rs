//! Diagnostics beside the text of an error: a stable code, and hints as data, which the program
//! that shows the error renders with its own names.

use std::borrow::Cow;
use std::fmt;

/// A setting of the library that a hint proposes to change. A program that offers it under another
/// name, such as an option of a command line, shows that name instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Setting {
    /// The axes of inputs that carry the batch.
    BatchAxis,
    /// The number that a named size is bound to.
    Dim,
    /// The value that an input is bound to.
    Set,
    /// Whether a batch size that is fixed in the file becomes symbolic.
    FreeBatch,
    /// The split rule that is assumed of an unknown operator.
    Assume,
    /// The file that weights are read from.
    Params,
    /// Whether weights may differ from those that a graph was made for.
    ParamsUnchecked,
    /// The most memory that may be used.
    MaxMemory,
    /// The model that a replicated graph was made from.
    Template,
    /// The graph before replication, as what is written.
    InputGraph,
    /// The devices that the graph is replicated over.
    Devices,
    /// The repairs that are allowed.
    Repair,
    /// The rows over which batch normalisation takes its statistics.
    BatchNorm,
    /// The number of logical GPUs.
    LogicalDevices,
    /// The kind of device that runs the program.
    Target,
}

impl Setting {
    /// Every setting.
    pub const ALL: [Self; 15] = [
        Self::BatchAxis,
        Self::Dim,
        Self::Set,
        Self::FreeBatch,
        Self::Assume,
        Self::Params,
        Self::ParamsUnchecked,
        Self::MaxMemory,
        Self::Template,
        Self::InputGraph,
        Self::Devices,
        Self::Repair,
        Self::BatchNorm,
        Self::LogicalDevices,
        Self::Target,
    ];

    /// Where the library has it.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::BatchAxis => "LoadOptions::batch_axis",
            Self::Dim => "LoadOptions::dims",
            Self::Set => "LoadOptions::set",
            Self::FreeBatch => "LoadOptions::free_batch",
            Self::Assume => "LoadOptions::assume",
            Self::Params => "LoadOptions::params",
            Self::ParamsUnchecked => "LoadOptions::params_unchecked",
            Self::MaxMemory => "max_memory",
            Self::Template => "Repaired::graph",
            Self::InputGraph => "Session::template",
            Self::Devices => "Replicate::devices",
            Self::Repair => "Replicate::repair",
            Self::BatchNorm => "RepairOptions::batch_norm",
            Self::LogicalDevices => "CudaOptions::logical",
            Self::Target => "Backend",
        }
    }
}

/// One way out of an error: advice, and the setting to change if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    advice: Cow<'static, str>,
    change: Option<(Setting, Vec<String>)>,
}

impl Hint {
    /// Advice that needs no setting, as an imperative clause.
    pub(crate) fn advice(advice: impl Into<Cow<'static, str>>) -> Self {
        Self { advice: advice.into(), change: None }
    }

    /// Advice to give a setting these values, each written as an option's value would be; a switch
    /// has none.
    pub(crate) fn set<V: Into<String>>(
        setting: Setting,
        values: impl IntoIterator<Item = V>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self { advice: advice.into(), change: Some((setting, values)) }
    }

    /// Advice to turn a switch on.
    pub(crate) fn turn_on(setting: Setting, advice: impl Into<Cow<'static, str>>) -> Self {
        Self::set(setting, [] as [String; 0], advice)
    }

    /// The setting to change, and its new values.
    pub(crate) fn change(&self) -> Option<(Setting, &[String])> {
        self.change.as_ref().map(|(setting, values)| (*setting, values.as_slice()))
    }

    /// The hint in the words of a program: `write` writes a setting with these values there.
    pub fn worded(&self, write: impl Fn(Setting, &[String]) -> String) -> String {
        match &self.change {
            None => self.advice.to_string(),
            Some((setting, values)) => format!("{} (`{}`)", self.advice, write(*setting, values)),
        }
    }
}

/// A setting with its values in the library's words.
fn written(setting: Setting, values: &[String]) -> String {
    let values = values.iter().map(|value| format!(" {value}"));
    values.fold(setting.path().to_owned(), |text, value| text + &value)
}

/// In the library's words.
impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(written))
    }
}

/// A remark on what a reader decided, or on settings that it ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    text: String,
    ignored: Vec<Setting>,
    hint: Option<Hint>,
}

impl Note {
    /// Settings that have no effect, and why, as a sentence.
    pub(crate) fn ignored(settings: Vec<Setting>, why: impl Into<String>) -> Self {
        Self { text: why.into(), ignored: settings, hint: None }
    }

    /// The remark with a way to decide otherwise.
    pub(crate) fn with_hint(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// The remark in the words of a program, as [`Hint::worded`].
    pub fn worded(&self, write: impl Fn(Setting, &[String]) -> String) -> String {
        let names: Vec<String> =
            self.ignored.iter().map(|s| format!("`{}`", write(*s, &[]))).collect();
        match names.as_slice() {
            [] => match &self.hint {
                Some(hint) => format!("{}; {}", self.text, hint.worded(write)),
                None => self.text.clone(),
            },
            [one] => format!("{one} has no effect: {}", self.text),
            [rest @ .., last] => {
                format!("{} and {last} have no effect: {}", rest.join(", "), self.text)
            }
        }
    }
}

impl From<String> for Note {
    fn from(text: String) -> Self {
        Self { text, ignored: Vec::new(), hint: None }
    }
}

/// In the library's words.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(written))
    }
}

/// The common interface of all errors of the library.
pub trait Diagnostic: std::error::Error {
    /// The stable code, `E` or `R` and four digits.
    fn code(&self) -> &'static str;

    /// The ways out that are known, the most likely one first.
    fn hints(&self) -> Vec<Hint> {
        Vec::new()
    }

    /// The text with its hints, each in a line of its own; `word` puts hints into words.
    fn worded(&self, word: &dyn Fn(&Hint) -> String) -> String {
        with_hints(self.to_string(), &self.hints(), word)
    }
}

/// A text with hints, each in a line of its own.
pub(crate) fn with_hints(text: String, hints: &[Hint], word: &dyn Fn(&Hint) -> String) -> String {
    hints.iter().fold(text, |text, hint| format!("{text}\n  = help: {}", word(hint)))
}
