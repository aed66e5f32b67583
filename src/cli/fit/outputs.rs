//! The files of predictions: arrays, or a line for each row with its classes and numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, LowerExp};
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::path::{Path, is_separator};
use std::sync::Arc;

use anyhow::bail;

use crate::Error;
use crate::cli::ui;
use crate::format::{self, npy, npz};
use crate::ir::Graph;
use crate::pass::{self, OutputLoss};
use crate::train::data::{Column, Source, is_image, listed_classes};
use crate::types::{DType, Quoted, Tensor};

/// The form of a file, by the ending of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// An array for each output.
    Npz,
    /// The array of the only output.
    Npy,
    /// A line for each row.
    Csv,
    /// An object for each row.
    Json,
}

impl Form {
    /// The form of the file at a path, which can be written.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        if path.as_os_str().as_encoded_bytes().last().is_some_and(|b| is_separator((*b).into())) {
            bail!("`--outputs {shown}` ends as the name of a folder does; name a file");
        }
        let device = path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
        let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        let form = match ending.as_deref() {
            Some("npz") => Self::Npz,
            Some("npy") => Self::Npy,
            Some("csv") => Self::Csv,
            Some("json") => Self::Json,
            Some(_) | None if device => Self::Npz,
            None if path == Path::new("-") => bail!(
                "`--outputs -`: outputs are not written to the standard output; name a .npz, .npy, \
                 .csv or .json file"
            ),
            Some(_) | None => {
                bail!("{shown}: outputs are .npz, .npy, .csv or .json files; name one")
            }
        };
        if form == Self::Npz && device && is_pipe(path) {
            bail!("`--outputs {shown}`: a pipe or a terminal takes no archive; name a file");
        }
        format::check_write(path).map_err(Error::from)?;
        Ok(form)
    }

    /// True if the names of classes are written.
    pub(super) fn has_classes(self) -> bool {
        matches!(self, Self::Csv | Self::Json)
    }

    /// Fails unless the form can hold the outputs of a model.
    pub(super) fn check(self, graph: &Graph) -> anyhow::Result<()> {
        let outputs = graph.outputs();
        let names = || outputs.iter().map(|o| Quoted(&o.name).to_string()).collect::<Vec<_>>();
        match self {
            Self::Npz => {}
            Self::Npy if outputs.len() == 1 => {}
            Self::Npy => bail!(
                "a .npy file holds one array, and the model has the outputs {}; use .npz",
                names().join(", ")
            ),
            Self::Csv | Self::Json => {
                let rowless = outputs.iter().find(|o| Column::of("x", graph.ty(o.value)).is_none());
                if let Some(output) = rowless {
                    bail!(
                        "the output {}, {}, has no first axis of rows; use .npz",
                        Quoted(&output.name),
                        graph.ty(output.value)
                    );
                }
            }
        }
        if self.has_classes()
            && let Some(output) = outputs.iter().find(|o| matches!(&*o.name, "row" | "file"))
        {
            bail!(
                "the output {} has the name of what {} says of its row; use .npz",
                Quoted(&output.name),
                if self == Self::Json { "an object" } else { "a line" }
            );
        }
        if self == Self::Csv {
            let wide = outputs.iter().find(|o| graph.ty(o.value).shape.rank() > 2);
            if let Some(output) = wide {
                bail!(
                    "a line of a .csv file has no place for {}, {}; use .npz or .json",
                    Quoted(&output.name),
                    graph.ty(output.value)
                );
            }
        }
        Ok(())
    }
}

/// The outputs that may have a number for each class, with the numbers of a row.
fn of_classes(graph: &Graph) -> impl Iterator<Item = (&str, usize)> {
    graph.outputs().iter().filter_map(|output| {
        let row = Column::of(&*output.name, graph.ty(output.value))?;
        let floats = matches!(row.dtype, DType::F32 | DType::F64);
        let &[width] = row.dims.as_slice() else { return None };
        (floats && width > 1).then_some((&*output.name, width))
    })
}

/// The outputs that may have a number for each class, in words.
fn listed(graph: &Graph) -> String {
    let all = of_classes(graph).map(|(name, width)| format!("{} has {width}", Quoted(name)));
    all.collect::<Vec<_>>().join(", ")
}

/// Fails unless an output has a number for each class of the data at a path.
pub(super) fn check_classes(graph: &Graph, names: &[String], by: &Path) -> anyhow::Result<()> {
    if of_classes(graph).any(|(_, width)| width == names.len()) {
        return Ok(());
    }
    let by = by.display();
    if of_classes(graph).next().is_none() {
        bail!(
            "`--classes-by {by}`: no output of the model has a number for each class; leave the \
             option out"
        );
    }
    bail!(
        "`--classes-by {by}`: it has {} classes, {}, and the output {}; name the data that the \
         model was trained on, or leave the option out",
        names.len(),
        listed_classes(names),
        listed(graph)
    )
}

/// What there is to say of the names of classes that are not those of any output: the names of a
/// checkpoint, which may be fewer.
pub(super) fn unlike_classes(graph: &Graph, names: &[String]) -> Option<String> {
    let count = names.len();
    if count == 0 || of_classes(graph).any(|(_, width)| width == count) {
        return None;
    }
    of_classes(graph).next()?;
    let what = if of_classes(graph).any(|(_, width)| width > count) {
        "the first have these names, the others their numbers"
    } else {
        "classes are written as numbers"
    };
    let listed = listed(graph);
    Some(format!("the model was trained on {count} classes, and the output {listed}: {what}"))
}

/// What there is to say of data to train on that name fewer classes than the only output with a
/// loss has: predictions have numbers for the others, too.
pub(super) fn fewer_classes(
    graph: &Graph,
    losses: &[OutputLoss],
    names: &[String],
) -> Option<String> {
    let [loss] = losses else { return None };
    let (_, width) = of_classes(graph).find(|(name, _)| *name == loss.output)?;
    let count = names.len();
    (0 < count && count < width).then(|| {
        format!(
            "the model has {width} classes, the data name {count}, {}: no row is of the others",
            listed_classes(names)
        )
    })
}

/// True for a device that has no places to go back to, as the writer of an archive does.
fn is_pipe(path: &Path) -> bool {
    let place = File::options().write(true).open(path).and_then(|mut file| file.stream_position());
    place.is_err_and(|error| error.kind() == io::ErrorKind::NotSeekable)
}

/// Predictions to be written.
pub(super) struct Predictions<'a> {
    pub(super) graph: &'a Graph,
    pub(super) outputs: &'a BTreeMap<String, Tensor>,
    /// The names of the classes in the order of their numbers, where they are known.
    pub(super) classes: &'a [String],
    /// The rows that they are of.
    pub(super) files: Arc<dyn Source>,
}

/// An output as lines and objects show it.
struct Shown<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    /// The elements of a row.
    width: usize,
    /// The names of the classes, where an element stands for one each.
    classes: Option<Vec<String>>,
    /// What the element of a class is called.
    measure: &'static str,
}

impl Shown<'_> {
    /// The class of a row, the first of the largest elements, with its place.
    fn class(&self, row: usize) -> Option<(usize, &str)> {
        let names = self.classes.as_ref()?;
        let values = row * self.width..(row + 1) * self.width;
        let values: Vec<f64> = values.map(|i| number(self.tensor, i)).collect();
        let better = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
        let best = (0..values.len()).reduce(better)?;
        // A row without a number has no class.
        (!values[best].is_nan()).then(|| (best, &*names[best]))
    }
}

/// An element of floats; of other types 0, which no class has.
fn number(tensor: &Tensor, at: usize) -> f64 {
    if tensor.dtype() == DType::F32 {
        f64::from(tensor.as_slice::<f32>()[at])
    } else if tensor.dtype() == DType::F64 {
        tensor.as_slice::<f64>()[at]
    } else {
        0.0
    }
}

impl Predictions<'_> {
    /// Writes them.
    pub(super) fn write(&self, path: &Path, form: Form) -> anyhow::Result<()> {
        match form {
            Form::Npz => npz::write(path, self.outputs).map_err(Error::from)?,
            Form::Npy => {
                for tensor in self.outputs.values() {
                    npy::save(path, tensor).map_err(Error::from)?;
                }
            }
            Form::Csv => {
                let head = self.head()?;
                format::write_with(path, |file| self.csv(&mut BufWriter::new(file), &head))
                    .map_err(Error::from)?;
            }
            Form::Json => format::write_with(path, |file| self.json(&mut BufWriter::new(file)))
                .map_err(Error::from)?,
        }
        Ok(())
    }

    fn shown(&self) -> Vec<Shown<'_>> {
        let is_known = of_classes(self.graph).any(|(_, width)| width == self.classes.len());
        let shown = self.graph.outputs().iter().filter_map(|output| {
            let tensor = self.outputs.get(&*output.name)?;
            let width: usize = tensor.dims().iter().skip(1).product();
            let floats = matches!(tensor.dtype(), DType::F32 | DType::F64);
            let of_rows = tensor.rank() == 2 && width > 1 && floats;
            let is_softmax = pass::softmax_axis(self.graph, output.value).is_some();
            let named = match self.classes.len() {
                0 => false,
                count if is_known => count == width,
                // The training of a checkpoint had fewer classes than the output has numbers.
                count => count < width,
            };
            let classes = (of_rows && (is_softmax || named)).then(|| {
                let names = if named { self.classes } else { &[] };
                let numbers = (names.len()..width).map(|class| class.to_string());
                names.iter().cloned().chain(numbers).collect()
            });
            let measure = if is_softmax { "probability" } else { "score" };
            Some(Shown { name: &output.name, tensor, width, classes, measure })
        });
        shown.collect()
    }

    /// The file of each row, where rows are of files of their own.
    fn file(&self, row: usize) -> Option<&str> {
        self.files.place(row).0.filter(|file| is_image(Path::new(file)))
    }

    /// The names of the columns of a CSV file. A class has its own name, unless another column has
    /// it.
    fn head(&self) -> anyhow::Result<Vec<String>> {
        let plain = self.columns(false);
        let Some(name) = twice(&plain) else { return Ok(plain) };
        let apart = self.columns(true);
        if let Some(name) = twice(&apart) {
            bail!("two columns would have the name {}; use .npz or .json", Quoted(name));
        }
        ui::note(format_args!(
            "the columns of classes are named OUTPUT[CLASS], because two would have the name {}",
            Quoted(name)
        ));
        Ok(apart)
    }

    /// The names of the columns; those of classes also have the name of their output if they stand
    /// `apart`.
    fn columns(&self, apart: bool) -> Vec<String> {
        let shown = self.shown();
        let files = self.file(0).is_some();
        let only = shown.len() == 1;
        let mut head = vec!["row".to_owned()];
        head.extend(files.then(|| "file".to_owned()));
        for output in &shown {
            let Shown { name, classes, measure, width, tensor } = output;
            let of = |word: &str| if only { word.to_owned() } else { format!("{name}.{word}") };
            match classes {
                Some(names) => {
                    head.extend([of("class"), of(measure)]);
                    let class =
                        |class: &String| if apart { format!("{name}[{class}]") } else { of(class) };
                    head.extend(names.iter().map(class));
                }
                None if tensor.rank() == 1 || *width == 1 => head.push((*name).to_owned()),
                None => head.extend((0..*width).map(|i| format!("{name}[{i}]"))),
            }
        }
        head
    }

    fn csv(&self, file: &mut impl Write, head: &[String]) -> io::Result<()> {
        let shown = self.shown();
        let files = self.file(0).is_some();
        line(file, head)?;
        for row in 0..self.files.rows() {
            let mut cells = vec![row.to_string()];
            // Empty for a row that is of no image, beside others that are.
            cells.extend(files.then(|| self.file(row).unwrap_or_default().to_owned()));
            for output in &shown {
                if output.classes.is_some() {
                    let class = output.class(row);
                    let at = class.map(|(at, _)| text(output.tensor, row * output.width + at));
                    // A row without a number has no class.
                    cells.push(class.map_or_else(String::new, |(_, name)| name.to_owned()));
                    cells.push(at.unwrap_or_default());
                }
                let values = row * output.width..(row + 1) * output.width;
                cells.extend(values.map(|i| text(output.tensor, i)));
            }
            line(file, &cells)?;
        }
        file.flush()
    }

    fn json(&self, file: &mut impl Write) -> io::Result<()> {
        let shown = self.shown();
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        write!(file, "{{\"rows\":[")?;
        for row in 0..self.files.rows() {
            write!(file, "{}\n{{\"row\":{row}", if row == 0 { "" } else { "," })?;
            if let Some(own) = self.file(row) {
                write!(file, ",\"file\":{}", quoted(own))?;
            }
            for output in &shown {
                write!(file, ",{}:{{", quoted(output.name))?;
                if let Some((at, name)) = output.class(row) {
                    let value = json(output.tensor, row * output.width + at);
                    let (name, measure) = (quoted(name), output.measure);
                    write!(file, "\"class\":{name},\"index\":{at},\"{measure}\":{value},")?;
                }
                write!(file, "\"values\":")?;
                nested(file, output.tensor, &output.tensor.dims()[1..], row * output.width)?;
                write!(file, "}}")?;
            }
            write!(file, "}}")?;
        }
        writeln!(file, "\n]}}")?;
        file.flush()
    }
}

/// A name that occurs twice, if there is one.
fn twice(names: &[String]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(*name)).map(String::as_str)
}

/// A line of a CSV file.
fn line(file: &mut impl Write, cells: &[String]) -> io::Result<()> {
    let cells: Vec<String> = cells
        .iter()
        .map(|cell| {
            let plain = !cell.contains([',', '"', '\n', '\r']);
            if plain { cell.clone() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
        })
        .collect();
    writeln!(file, "{}", cells.join(","))
}

/// An element with all its digits.
fn text(tensor: &Tensor, at: usize) -> String {
    match tensor.dtype() {
        DType::F64 => float(tensor.as_slice::<f64>()[at]),
        DType::F32 => float(tensor.as_slice::<f32>()[at]),
        DType::F16 => float(tensor.as_slice::<half::f16>()[at]),
        DType::Bf16 => float(tensor.as_slice::<half::bf16>()[at]),
        DType::I64 => tensor.as_slice::<i64>()[at].to_string(),
        DType::I32 => tensor.as_slice::<i32>()[at].to_string(),
        DType::I16 => tensor.as_slice::<i16>()[at].to_string(),
        DType::I8 => tensor.as_slice::<i8>()[at].to_string(),
        DType::U64 => tensor.as_slice::<u64>()[at].to_string(),
        DType::U32 => tensor.as_slice::<u32>()[at].to_string(),
        DType::U16 => tensor.as_slice::<u16>()[at].to_string(),
        DType::U8 => tensor.as_slice::<u8>()[at].to_string(),
        DType::Bool => (tensor.as_slice::<u8>()[at] != 0).to_string(),
    }
}

/// A float with all its digits; one that is very small or large has a power of ten.
fn float(x: impl Copy + Into<f64> + Display + LowerExp) -> String {
    let size: f64 = x.into().abs();
    let is_plain = size == 0.0 || !size.is_finite() || (1e-4..=1e15).contains(&size);
    if is_plain { x.to_string() } else { format!("{x:e}") }
}

/// An element as JSON has it: one that is not finite is a text.
fn json(tensor: &Tensor, at: usize) -> String {
    let text = text(tensor, at);
    if text.contains("NaN") || text.contains("inf") { format!("\"{text}\"") } else { text }
}

/// The elements from a place on, as arrays of these sizes.
fn nested(file: &mut impl Write, tensor: &Tensor, sizes: &[usize], at: usize) -> io::Result<()> {
    let [size, rest @ ..] = sizes else { return write!(file, "{}", json(tensor, at)) };
    let stride: usize = rest.iter().product();
    write!(file, "[")?;
    for i in 0..*size {
        if i > 0 {
            write!(file, ",")?;
        }
        nested(file, tensor, rest, at + i * stride)?;
    }
    write!(file, "]")
}

#[cfg(test)]
mod tests {
    use super::{Form, OutputLoss, Path, fewer_classes, float, unlike_classes};
    use crate::ir::{Builder, Graph};
    use crate::op::Unary;

    /// A model with an output of this many numbers.
    fn model(width: usize) -> Graph {
        let mut b = Builder::new("model");
        let x = b.input("x", format!("f32[N,{width}]").parse().unwrap());
        let y = b.op("y", Unary::Relu, &[x]).unwrap();
        b.output("y", y);
        b.finish().0
    }

    #[test]
    fn names_of_other_classes_are_told() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let said = |width| unlike_classes(&model(width), &names);
        assert_eq!((said(3), said(1)), (None, None));
        assert_eq!(unlike_classes(&model(4), &[]), None);
        let expected = "the model was trained on 3 classes, and the output `y` has 4: the first \
            have these names, the others their numbers";
        assert_eq!(said(4).unwrap(), expected);
        assert!(said(2).unwrap().ends_with("classes are written as numbers"));
    }

    #[test]
    fn fewer_classes_than_the_model_has_are_told() {
        let names = ["a", "b"].map(str::to_owned);
        let loss = |output: &str| OutputLoss::new(output, "scce".parse().unwrap());
        let said = |width, losses: &[OutputLoss]| fewer_classes(&model(width), losses, &names);
        assert_eq!(
            said(10, &[loss("y")]).unwrap(),
            "the model has 10 classes, the data name 2, 0 `a`, 1 `b`: no row is of the others"
        );
        // As many, one number for two classes, an output without a loss, several losses.
        assert_eq!((said(2, &[loss("y")]), said(1, &[loss("y")])), (None, None));
        assert_eq!((said(10, &[loss("z")]), said(10, &[loss("y"), loss("z")])), (None, None));
        assert_eq!(fewer_classes(&model(10), &[loss("y")], &[]), None);
    }

    #[test]
    fn floats_have_all_their_digits() {
        let exact = 2.493_365_8e-20f32;
        assert_eq!(float(exact), "2.4933658e-20");
        assert_eq!(float(exact).parse::<f32>().unwrap().to_bits(), exact.to_bits());
        assert_eq!(
            [0.0, -0.5, 0.0002, 1e15].map(float),
            ["0", "-0.5", "0.0002", "1000000000000000"]
        );
        assert_eq!([-5e-324, 1e300].map(float), ["-5e-324", "1e300"]);
        assert_eq!([f64::NAN, f64::NEG_INFINITY].map(float), ["NaN", "-inf"]);
        assert_eq!(float(half::f16::from_f32(0.00005)), "5.0008297e-5");
    }

    #[test]
    fn files_have_a_known_ending() {
        for (name, said) in [
            ("p", "name one"),
            (".csv", "name one"),
            ("p.txt", "name one"),
            ("-", "name a .npz"),
            ("p.npz/", "name a file"),
        ] {
            let error = Form::of(Path::new(name)).err().unwrap().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(Form::of(&folder.path().join("p.NPZ")).is_ok_and(|form| form == Form::Npz));
        #[cfg(unix)]
        assert!(Form::of(Path::new("/dev/null")).is_ok_and(|form| form == Form::Npz));
    }
}
