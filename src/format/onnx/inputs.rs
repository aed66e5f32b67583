//! The inputs of a model: their types, and which of their sizes is the batch.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Quoted;
use super::error::{MAX_OPEN_SIZES, list_names};
use super::file::File;
use super::flat::{Block, ValueId};
use super::known::{self, Size};
use super::options::ImportOptions;
use super::proto::tensor_shape_proto::dimension::Value as DimValue;
use super::proto::type_proto::Value as TypeValue;
use super::proto::{TensorShapeProto, ValueInfoProto};
use super::tensor::element;
use super::{BatchCandidate, ImportError, UnboundDim};
use crate::ir::SizeSymbol;
use crate::op::infer::MAX_INTS;
use crate::types::{DType, Dim, MAX_RANK, Note, Setting, Shape, Tensor, TensorType};

/// The inputs that a run is given: those without an initializer.
#[derive(Clone)]
pub(super) struct Inputs {
    all: Vec<Input>,
    /// The sizes that may be the batch.
    pub(super) classes: Vec<BatchCandidate>,
    /// The batch size of the file, where it was freed.
    pub(super) freed: Option<i64>,
    /// The classes of sizes that equal the freed one: constants, unless the graph equates them with
    /// the batch.
    pub(super) constants: BTreeSet<usize>,
    pub(super) notes: Vec<Note>,
    /// The sizes that have a name in the file and are a class, or bound by the caller.
    named: BTreeMap<String, Size>,
    /// The inputs whose leading size is bound by the caller.
    bound: BTreeSet<ValueId>,
    /// The values of inputs that are known.
    pub(super) known: Vec<(ValueId, Tensor)>,
}

#[derive(Clone)]
struct Input {
    id: ValueId,
    name: String,
    dtype: DType,
    sizes: Vec<Size>,
}

impl Inputs {
    /// Reads the declared types and decides which sizes may be the batch; where it is to be freed,
    /// constants among them.
    pub(super) fn read(
        file: &File,
        block: &Block,
        options: &ImportOptions,
        given: &BTreeMap<String, Tensor>,
    ) -> Result<Self, ImportError> {
        // Before IR version 4 every initializer had to be an input as well: such an input is a
        // weight with a default, not an operand of a run.
        let defaults: BTreeSet<ValueId> = block.initializers.iter().copied().collect();
        let spans = block.inputs.iter().zip(&file.graph.inputs);
        let declared = spans.filter(|(id, _)| !defaults.contains(id));
        let inputs = declared
            .map(|(id, span)| {
                let info = file.value(*span)?;
                input(*id, &info).map_err(|reason| wrong(info.name(), reason))
            })
            .collect::<Result<Vec<Input>, _>>()?;
        let (classes, notes) = (Vec::new(), Vec::new());
        let bound = options.dims.iter().map(|(name, c)| (name.clone(), Size::Constant(*c)));
        let named = bound.collect();
        let (constants, bound) = (BTreeSet::new(), BTreeSet::new());
        let (freed, known) = (None, Vec::new());
        let mut inputs =
            Self { all: inputs, classes, freed, constants, notes, named, bound, known };
        inputs.set(&options.set, false)?;
        inputs.set(given, true)?;
        inputs.bind(&options.dims)?;
        if !options.batch_axis.is_empty() {
            inputs.declare(options)?;
        } else if options.free_batch && inputs.baked()? {
            inputs.lead();
        } else {
            inputs.open();
        }
        if !options.symbols.is_empty() {
            inputs.open();
        }
        inputs.check()?;
        Ok(inputs)
    }

    /// The sizes that stay symbols: all classes but the batch, which is the first.
    pub(super) fn symbols(&self, options: &ImportOptions) -> Result<Vec<SizeSymbol>, ImportError> {
        let others = self.classes.iter().skip(1).filter_map(|class| class.sizes.first());
        let symbol = |UnboundDim { name, input, axis }: &UnboundDim| {
            let open = || UnboundDim { name: name.clone(), input: input.clone(), axis: *axis };
            let number = options.symbols.get(name).copied();
            let number = number.ok_or_else(|| ImportError::UnboundDims(vec![open()]))?;
            Ok(SizeSymbol { name: name.clone(), number })
        };
        others.map(symbol).collect()
    }

    /// The values of the inputs, with their names and types where class `i` has the size `size(i)`.
    pub(super) fn types<'a>(
        &'a self,
        size: &'a dyn Fn(usize) -> Dim,
    ) -> impl Iterator<Item = Result<(ValueId, &'a str, TensorType), ImportError>> {
        self.all.iter().map(move |input| {
            let sizes = input.sizes.iter().map(|s| match s {
                Size::Constant(c) => Ok(Dim::from(*c)),
                Size::Class(class) => Ok(size(*class)),
                Size::Named(_) | Size::Unnamed => {
                    let name = Quoted(&input.name);
                    let text = format!("a size of input {name} is open after they were checked");
                    Err(ImportError::Internal(text))
                }
            });
            let shape = sizes.collect::<Result<Shape, _>>()?;
            Ok((input.id, &*input.name, TensorType::new(input.dtype, shape)))
        })
    }

    /// The element type and the sizes that the file declares for a value inside the graph, or what
    /// is missing.
    pub(super) fn declared(&self, info: &ValueInfoProto) -> Result<(DType, Vec<Size>), String> {
        let Input { dtype, mut sizes, .. } = input(0, info)?;
        for size in &mut sizes {
            if let Size::Named(name) = size
                && let Some(known) = self.named.get(name)
            {
                *size = known.clone();
            }
        }
        Ok((dtype, sizes))
    }

    /// Makes the values of inputs known, which stay inputs or are none any more.
    fn set(&mut self, values: &BTreeMap<String, Tensor>, stay: bool) -> Result<(), ImportError> {
        for (name, tensor) in values {
            let refused = |reason: String| ImportError::Setting {
                setting: Setting::Set,
                value: name.clone(),
                reason,
            };
            let Some(at) = self.all.iter().position(|input| input.name == *name) else {
                let known = list_names(self.all.iter().map(|i| &*i.name));
                return Err(refused(format!("there is no such input; the inputs are {known}")));
            };
            // The elements of an input are followed where they are few.
            if stay && tensor.len() > MAX_INTS {
                return Err(refused(format!("it has more than {MAX_INTS} elements")));
            }
            let value = known::fitted(tensor, self.all[at].dtype, &self.all[at].sizes);
            self.known.push((self.all[at].id, value.map_err(refused)?));
            if !stay {
                self.all.remove(at);
            }
        }
        Ok(())
    }

    /// Replaces the sizes that are bound.
    fn bind(&mut self, dims: &BTreeMap<String, i64>) -> Result<(), ImportError> {
        let mut unused: BTreeSet<&str> = dims.keys().map(String::as_str).collect();
        for input in &mut self.all {
            for (axis, size) in input.sizes.iter_mut().enumerate() {
                let name = match size {
                    Size::Named(name) => name.clone(),
                    Size::Unnamed => format!("{}[{axis}]", input.name),
                    Size::Constant(_) | Size::Class(_) => continue,
                };
                if let Some(bound) = dims.get(&name) {
                    unused.remove(&*name);
                    *size = Size::Constant(*bound);
                    if axis == 0 {
                        self.bound.insert(input.id);
                    }
                }
            }
        }
        let option = |name: &str, reason: &str| ImportError::Setting {
            setting: Setting::Dim,
            value: name.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(name) = unused.first() {
            return Err(option(name, "no input has a size of this name"));
        }
        match dims.iter().find(|(_, size)| **size < 0) {
            Some((name, _)) => Err(option(name, "a size is at least 0")),
            None => Ok(()),
        }
    }

    /// Whether the first input that has an axis leads with a constant, which is to be freed.
    fn baked(&mut self) -> Result<bool, ImportError> {
        let first = self.all.iter().find(|input| !input.sizes.is_empty());
        match first.map(|input| (input, &input.sizes[0])) {
            Some((input, Size::Constant(_))) if self.bound.contains(&input.id) => {
                let why = "the leading size is bound to a number, so it is not the batch";
                self.notes.push(Note::ignored(vec![Setting::FreeBatch], why));
                Ok(false)
            }
            // Every number is a multiple of 0: nothing could tell where the batch flows.
            Some((Input { name, .. }, Size::Constant(0))) => {
                Err(wrong(name, "its leading size is 0, which cannot be freed".to_owned()))
            }
            Some((_, Size::Constant(size))) => {
                self.freed = Some(*size);
                Ok(true)
            }
            Some(_) => {
                let why = "the batch is symbolic already";
                self.notes.push(Note::ignored(vec![Setting::FreeBatch], why));
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Makes the leading sizes that the file leaves open classes, and each that is the size that is
    /// freed: that two numbers are equal does not make them one. An equal size on another axis, as
    /// states have it, may be the batch as well.
    fn lead(&mut self) {
        let mut named = BTreeMap::new();
        let is_freed = |size: &Size, freed| matches!(size, Size::Constant(c) if Some(*c) == freed);
        for input in 0..self.all.len() {
            let Some(size) = self.all[input].sizes.first() else { continue };
            let (next, freed) = (self.classes.len(), is_freed(size, self.freed));
            // The first leading size is the batch by definition; any other that equals it may be a
            // constant by chance.
            if freed && next > 0 {
                self.constants.insert(next);
            }
            if freed || matches!(size, Size::Named(_) | Size::Unnamed) {
                self.classify(input, 0, &mut named);
            }
        }
        for input in 0..self.all.len() {
            for axis in 1..self.all[input].sizes.len() {
                let next = self.classes.len();
                // Beyond the limit a size simply stays the constant that the file says.
                if next < MAX_OPEN_SIZES && is_freed(&self.all[input].sizes[axis], self.freed) {
                    self.constants.insert(next);
                    self.classify(input, axis, &mut named);
                }
            }
        }
        self.replace_named(&named);
    }

    /// Whether a size of the class leads an input.
    pub(super) fn leads(&self, class: usize) -> bool {
        self.classes[class].sizes.iter().any(|size| size.axis == 0)
    }

    /// Makes these classes constants again.
    pub(super) fn bake(&mut self, classes: &BTreeSet<usize>) {
        // Without a freed size no class was a constant before.
        let Some(freed) = self.freed else { return };
        self.constants.retain(|class| !classes.contains(class));
        for size in self.all.iter_mut().flat_map(|input| &mut input.sizes) {
            if matches!(size, Size::Class(class) if classes.contains(class)) {
                *size = Size::Constant(freed);
            }
        }
    }

    /// Makes every size that the file leaves open a class.
    fn open(&mut self) {
        let mut named = BTreeMap::new();
        for input in 0..self.all.len() {
            for axis in 0..self.all[input].sizes.len() {
                if matches!(self.all[input].sizes[axis], Size::Named(_) | Size::Unnamed) {
                    self.classify(input, axis, &mut named);
                }
            }
        }
        self.replace_named(&named);
    }

    /// Makes a size a class of its own, or that of the sizes of the same name.
    fn classify(&mut self, input: usize, axis: usize, named: &mut BTreeMap<String, usize>) {
        let next = self.classes.len();
        let Input { name: input, sizes, .. } = &mut self.all[input];
        let (class, name) = match &sizes[axis] {
            Size::Named(name) => (*named.entry(name.clone()).or_insert(next), name.clone()),
            Size::Unnamed => (next, format!("{input}[{axis}]")),
            Size::Constant(_) | Size::Class(_) => (next, String::new()),
        };
        if class == next {
            self.classes.push(BatchCandidate::default());
        }
        self.classes[class].sizes.push(UnboundDim { name, input: input.clone(), axis });
        sizes[axis] = Size::Class(class);
    }

    /// Makes the declared axes the batch.
    fn declare(&mut self, options: &ImportOptions) -> Result<(), ImportError> {
        let mut named = BTreeMap::new();
        self.classes.push(BatchCandidate::default());
        for (name, axis) in &options.batch_axis {
            let Some(input) = self.all.iter_mut().find(|i| i.name == *name) else {
                let known = list_names(self.all.iter().map(|i| &*i.name));
                let reason = format!("there is no such input; the inputs are {known}");
                let (setting, value) = (Setting::BatchAxis, name.clone());
                return Err(ImportError::Setting { setting, value, reason });
            };
            let Some(size) = input.sizes.get_mut(*axis) else {
                let reason = format!("it has no axis {axis}");
                return Err(wrong(name, reason));
            };
            match size {
                Size::Named(s) => {
                    named.insert(s.clone(), 0);
                }
                Size::Constant(c) if !options.free_batch || *c == 0 => {
                    let (input, fixed) = (name.clone(), *c != 0);
                    let reason = format!("axis {axis} has the fixed size {c}");
                    return Err(ImportError::Input { input, reason, fixed });
                }
                Size::Constant(c) => {
                    let other = *self.freed.get_or_insert(*c);
                    if other != *c {
                        let reason =
                            format!("axis {axis} has the size {c}, that of another is {other}");
                        return Err(wrong(name, reason));
                    }
                }
                Size::Unnamed | Size::Class(_) => {}
            }
            *size = Size::Class(0);
            let (name, input) = (String::new(), name.clone());
            self.classes[0].sizes.push(UnboundDim { name, input, axis: *axis });
        }
        self.replace_named(&named);
        Ok(())
    }

    /// Equal names are equal sizes, on whatever axis they stand.
    fn replace_named(&mut self, named: &BTreeMap<String, usize>) {
        self.named.extend(named.iter().map(|(name, class)| (name.clone(), Size::Class(*class))));
        for size in self.all.iter_mut().flat_map(|i| &mut i.sizes) {
            if let Size::Named(name) = size
                && let Some(class) = named.get(name)
            {
                *size = Size::Class(*class);
            }
        }
    }

    /// Makes all classes one, which was proved to be.
    pub(super) fn one(&mut self, class: Vec<BatchCandidate>) {
        for size in self.all.iter_mut().flat_map(|i| &mut i.sizes).chain(self.named.values_mut()) {
            if let Size::Class(class) = size {
                *class = 0;
            }
        }
        self.classes = class;
        self.constants.clear();
    }

    /// Says which sizes the batch was found to be, where the file does not say so plainly.
    pub(super) fn note(&mut self) {
        let [class] = &*self.classes else {
            if self.classes.is_empty() {
                self.notes.push("no input carries a batch".to_owned().into());
            }
            return;
        };
        let inputs: Vec<&str> = class.axes().map(|(input, _)| input).collect();
        let all = list_names(inputs.iter().copied());
        let names = class.open().count();
        if let Some(size) = self.freed {
            self.notes.push(format!("the size {size} of {all} was freed: it is the batch").into());
        } else if names > 1 {
            self.notes.push(format!("open sizes of {all} are one: the graph equates them").into());
        }
        let leads = class.sizes.iter().any(|s| s.axis == 0);
        if let (false, 1, Some(UnboundDim { name, input, axis })) =
            (leads, names, class.sizes.first())
        {
            let named =
                if name.ends_with(']') { String::new() } else { format!("{}, ", Quoted(name)) };
            let text = format!("the batch is {named}axis {axis} of input {}", Quoted(input));
            self.notes.push(text.into());
        }
    }

    /// Fails if a size is still open, or is none.
    fn check(&self) -> Result<(), ImportError> {
        let mut unbound: Vec<UnboundDim> = Vec::new();
        let mut seen = BTreeSet::new();
        for Input { name: input, sizes, .. } in &self.all {
            for (axis, size) in sizes.iter().enumerate() {
                let name = match size {
                    Size::Named(name) => name.clone(),
                    Size::Unnamed => format!("{input}[{axis}]"),
                    Size::Constant(_) | Size::Class(_) => continue,
                };
                if seen.insert(name.clone()) {
                    unbound.push(UnboundDim { name, input: input.clone(), axis });
                }
            }
        }
        if !unbound.is_empty() {
            return Err(ImportError::UnboundDims(unbound));
        }
        for typed in self.types(&|_| Dim::n()) {
            let (_, name, ty) = typed?;
            if !ty.shape.is_valid() {
                return Err(wrong(name, format!("{ty} is too large")));
            }
        }
        Ok(())
    }
}

fn wrong(input: &str, reason: String) -> ImportError {
    ImportError::Input { input: input.to_owned(), reason, fixed: false }
}

fn input(id: ValueId, info: &ValueInfoProto) -> Result<Input, String> {
    let ty = info.r#type.as_ref().and_then(|t| t.value.as_ref());
    let tensor = match ty {
        Some(TypeValue::TensorType(tensor)) => tensor,
        Some(TypeValue::SparseTensorType(_)) => return Err("it is a sparse tensor".to_owned()),
        Some(TypeValue::SequenceType(_)) => return Err("it is a sequence".to_owned()),
        Some(TypeValue::MapType(_)) => return Err("it is a map".to_owned()),
        Some(TypeValue::OptionalType(_)) => return Err("it is optional".to_owned()),
        None => return Err("the file does not declare its type".to_owned()),
    };
    let dtype = element(tensor.elem_type().into())?;
    let shape = tensor.shape.as_ref().ok_or("the file does not declare its shape")?;
    Ok(Input { id, name: info.name().to_owned(), dtype, sizes: sizes(shape)? })
}

/// What exporters write for the name of an open size that has none: two of them are two sizes.
const NO_NAMES: [&str; 4] = ["", "?", "-1", "None"];

/// The sizes that the file declares. Some exporters write -1 for an open one.
fn sizes(shape: &TensorShapeProto) -> Result<Vec<Size>, String> {
    let rank = shape.dim.len();
    if rank > MAX_RANK {
        return Err(format!("{rank} axes are more than {MAX_RANK}"));
    }
    let size = |(axis, value): (usize, Option<&DimValue>)| match value {
        Some(DimValue::DimValue(c)) if *c >= 0 => Ok(Size::Constant(*c)),
        Some(DimValue::DimValue(c)) if *c < -1 => Err(format!("axis {axis} has the size {c}")),
        Some(DimValue::DimParam(name)) if !NO_NAMES.contains(&name.trim()) => {
            Ok(Size::Named(name.clone()))
        }
        _ => Ok(Size::Unnamed),
    };
    shape.dim.iter().map(|d| d.value.as_ref()).enumerate().map(size).collect()
}

/// The element type and the number of axes that the file declares for an output, as far as it does.
pub(super) fn declared(info: &ValueInfoProto) -> (Option<DType>, Option<usize>) {
    match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) => {
            (element(tensor.elem_type().into()).ok(), tensor.shape.as_ref().map(|s| s.dim.len()))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Input, Inputs, Size};
    use crate::types::{DType, Dim};

    #[test]
    fn a_size_that_is_open_after_the_check_is_an_internal_error() {
        for open in [Size::Named("time".to_owned()), Size::Unnamed] {
            let sizes = vec![Size::Constant(3), open];
            let x = Input { id: 0, name: "x".to_owned(), dtype: DType::F32, sizes };
            let inputs = Inputs {
                all: vec![x],
                classes: Vec::new(),
                freed: None,
                constants: BTreeSet::new(),
                notes: Vec::new(),
                named: BTreeMap::new(),
                bound: BTreeSet::new(),
                known: Vec::new(),
            };
            let error = inputs.types(&|_| Dim::n()).find_map(Result::err).unwrap().to_string();
            let expected = "internal error: a size of input `x` is open after they were checked";
            assert_eq!(error, expected);
        }
    }
}
