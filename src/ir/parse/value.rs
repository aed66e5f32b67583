use half::{bf16, f16};

use super::super::text::{MAX_LIST, SPLIT};
use super::super::verify::MAX_CONSTANT;
use super::scan::{Fault, ScanResult, Scanner};
use crate::op::Attr;
use crate::types::{DType, Device, Dim, FastMap, MAX_RANK, Quoted, Shape, Tensor, TensorType};

/// The longest formula that is read: a bound on the work that a hostile text can ask for.
const MAX_FORMULA: usize = 2048;
/// The most different formulas that are remembered.
/// Replicated graphs have a few formulas for each replica; this is far above them.
const MAX_REMEMBERED: usize = 1 << 12;

/// Parser of sizes, types, tensors and attribute values.
pub(super) struct Values<'a> {
    pub(super) scan: Scanner<'a>,
    /// The rows of each replica.
    pub(super) rows: Vec<Dim>,
    /// The numbers of the symbols `S1`, `S2` and so on.
    pub(super) symbols: Vec<i64>,
    /// Formulas that were parsed, by their text: reading them is slower than all else in a line.
    formulas: FastMap<&'a str, Dim>,
}

impl<'a> Values<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let (rows, symbols) = (Vec::new(), Vec::new());
        Self { scan: Scanner::new(text), rows, symbols, formulas: FastMap::default() }
    }

    /// A device: a kind and a number, such as `gpu:0`.
    pub(super) fn device(&mut self) -> ScanResult<Device> {
        let from = self.scan.next();
        let text = self.scan.run(|c| c.is_ascii_alphanumeric() || c == ':');
        text.parse().map_err(|_| {
            self.scan.back(from);
            self.scan.expected("a device such as `gpu:0`")
        })
    }

    /// The mark `@dp` of the split.
    pub(super) fn split_name(&mut self) -> ScanResult<()> {
        let from = self.scan.next();
        self.scan.expect("@")?;
        if self.scan.word() == SPLIT {
            return Ok(());
        }
        Err(Fault::new(self.scan.since(from), format!("the split is named `@{SPLIT}`")))
    }

    /// A replica in brackets that the split has.
    pub(super) fn replica(&mut self) -> ScanResult<u32> {
        self.scan.expect("[")?;
        let from = self.scan.next();
        let i: u32 = self.scan.number("the number of a replica")?;
        if i as usize >= self.rows.len() {
            let message = match self.rows.len() {
                0 => "no split is declared".to_owned(),
                k => format!("the split has {k} replicas; there is no replica {i}"),
            };
            return Err(Fault::new(self.scan.since(from), message));
        }
        self.scan.expect("]")?;
        Ok(i)
    }

    /// An element type and sizes in brackets.
    pub(super) fn ty(&mut self) -> ScanResult<TensorType> {
        let from = self.scan.next();
        let word = self.scan.word();
        if word.is_empty() {
            return Err(self.scan.expected("a type such as `f32[N,8]`"));
        }
        let dtype: DType =
            word.parse().map_err(|e| Fault::new(self.scan.since(from), format!("{e}")))?;
        self.shape(dtype)
    }

    /// Sizes in brackets as the type of a tensor, at most [`MAX_RANK`] of them.
    fn shape(&mut self, dtype: DType) -> ScanResult<TensorType> {
        self.scan.expect("[")?;
        let mut shape = Shape::scalar();
        if !self.scan.eat("]") {
            loop {
                if shape.rank() == MAX_RANK {
                    let from = self.scan.next();
                    let message = format!("a tensor has at most {MAX_RANK} axes");
                    return Err(Fault::new(from..from, message));
                }
                shape.push(self.dim()?);
                if self.scan.eat("]") {
                    break;
                }
                self.scan.expect(",")?;
            }
        }
        Ok(TensorType { dtype, shape })
    }

    /// Sizes in brackets.
    pub(super) fn dims(&mut self) -> ScanResult<Vec<Dim>> {
        self.list(Self::dim)
    }

    /// Items in brackets with commas between them, none after the last.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> ScanResult<T>) -> ScanResult<Vec<T>> {
        self.scan.expect("[")?;
        let mut items = Vec::new();
        if self.scan.eat("]") {
            return Ok(items);
        }
        loop {
            self.fits(items.len())?;
            items.push(item(self)?);
            if self.scan.eat("]") {
                return Ok(items);
            }
            self.scan.expect(",")?;
        }
    }

    /// Fails if a list that has `len` elements may not have another.
    pub(super) fn fits(&mut self, len: usize) -> ScanResult<()> {
        if len < MAX_LIST {
            return Ok(());
        }
        let from = self.scan.next();
        Err(Fault::new(from..from, format!("a list has at most {MAX_LIST} elements")))
    }

    /// One size.
    fn dim(&mut self) -> ScanResult<Dim> {
        let from = self.scan.next();
        let text = self.scan.formula();
        self.formula(text, from)
    }

    /// The size that `text` says: a number, a formula of `N`, or the rows of a replica.
    fn formula(&mut self, text: &'a str, from: usize) -> ScanResult<Dim> {
        // 18 digits fit an `i64`: plain numbers, by far the most sizes, need no parser and no
        // memory.
        let short = text.len() <= 18 && !text.is_empty();
        if short && text.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(Dim::from(text.bytes().fold(0, |n, b| n * 10 + i64::from(b - b'0'))));
        }
        if let Some(dim) = self.formulas.get(text) {
            return Ok(dim.clone());
        }
        let at = from..from + text.len();
        // `n3@dp`: the rows of replica 3.
        // The printer writes the rows of a replica so, because their formula is long.
        let alias = text.strip_suffix(SPLIT).and_then(|t| t.strip_suffix('@'));
        let dim = if let Some(replica) = alias.and_then(|t| t.strip_prefix('n')) {
            let i: Option<usize> = replica.parse().ok();
            let rows = i.and_then(|i| self.rows.get(i));
            rows.cloned()
                .ok_or_else(|| Fault::new(at, format!("there is no replica {}", Quoted(replica))))?
        } else if text.is_empty() {
            return Err(self.scan.expected("a size such as `8` or `N-2*(N/3)`"));
        } else if text.len() > MAX_FORMULA {
            return Err(Fault::new(from..from + 1, "the formula is too long"));
        } else {
            Dim::parse(text, &self.symbols).map_err(|e| Fault::new(at, format!("{e}")))?
        };
        // A text repeats few formulas many times; one of many different ones does not fill the
        // memory.
        if self.formulas.len() < MAX_REMEMBERED {
            self.formulas.insert(text, dim.clone());
        }
        Ok(dim)
    }

    /// The value of an attribute.
    pub(super) fn attr(&mut self) -> ScanResult<Attr> {
        let from = self.scan.next();
        match self.scan.peek() {
            Some(b'[') => return self.numbers(),
            Some(b'"') => return Ok(Attr::Name(self.scan.string("a string")?.into_owned())),
            Some(b) if b.is_ascii_lowercase() => {}
            _ => return self.number(),
        }
        let word = self.scan.word();
        match self.scan.peek() {
            // A word before a bracket is an element type: what follows is a tensor.
            Some(b'[') => {
                let dtype = word.parse();
                let dtype = dtype.map_err(|e| Fault::new(self.scan.since(from), format!("{e}")))?;
                return self.tensor(dtype).map(Attr::Tensor);
            }
            Some(b',' | b'}') => {}
            _ => {
                self.scan.back(from);
                return self.number();
            }
        }
        Ok(match word {
            "true" => Attr::Bool(true),
            "false" => Attr::Bool(false),
            "inf" => Attr::Float(f64::INFINITY),
            "nan" => Attr::Float(f64::NAN),
            _ => Attr::Name(word.to_owned()),
        })
    }

    /// A float, which has a `.` or an exponent, or a formula.
    fn number(&mut self) -> ScanResult<Attr> {
        let from = self.scan.next();
        let text = self.scan.formula();
        if let Some(x) = float(text) {
            return Ok(Attr::Float(x));
        }
        self.formula(text, from).map(Attr::Int)
    }

    /// A list of integers or of floats. An empty one is of integers: attributes of either kind take
    /// it.
    fn numbers(&mut self) -> ScanResult<Attr> {
        let from = self.scan.next();
        let (mut ints, mut floats) = (Vec::new(), Vec::new());
        self.list(|values| {
            match values.number()? {
                Attr::Float(x) => floats.push(x),
                Attr::Int(d) => ints.push(d),
                Attr::Bool(_)
                | Attr::Ints(_)
                | Attr::Floats(_)
                | Attr::Name(_)
                | Attr::Tensor(_) => {}
            }
            Ok(())
        })?;
        match (ints.is_empty(), floats.is_empty()) {
            (_, true) => Ok(Attr::Ints(ints)),
            (true, false) => Ok(Attr::Floats(floats)),
            (false, false) => {
                let message = "a list holds integers or floats, not both";
                Err(Fault::new(self.scan.since(from), message)
                    .help("a float has a `.` or an exponent"))
            }
        }
    }

    /// A tensor whose element type was read.
    fn tensor(&mut self, dtype: DType) -> ScanResult<Tensor> {
        let from = self.scan.next();
        let ty = self.shape(dtype)?;
        let size = |d: &Dim| d.as_const().and_then(|c| usize::try_from(c).ok());
        let dims: Option<Vec<usize>> = ty.shape.iter().map(size).collect();
        let elements = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        // The product of hostile sizes may overflow; it is known before memory is taken.
        let Some((dims, count)) = dims.and_then(|d| elements(&d).map(|n| (d, n))) else {
            return Err(Fault::new(self.scan.since(from), format!("no tensor is {ty}")));
        };
        if count > MAX_CONSTANT {
            let message = format!("a constant has at most {MAX_CONSTANT} elements, not {count}");
            return Err(Fault::new(self.scan.since(from), message).help("make it a parameter"));
        }
        let start = self.scan.next();
        let mut bytes = Vec::with_capacity(count * dtype.bytes());
        let mut found = 0usize;
        self.list(|values| {
            let at = values.scan.next();
            let text = values.scan.formula();
            // Too many elements are counted on for the message, and take no memory.
            found += 1;
            if found > count {
                return Ok(());
            }
            push_element(&mut bytes, dtype, text).ok_or_else(|| {
                Fault::new(
                    at..at + text.len().max(1),
                    format!("{} is not of type {dtype}", Quoted(text)),
                )
            })
        })?;
        let tensor = Tensor::from_bytes(dtype, &dims, &bytes).ok().filter(|_| found == count);
        tensor.ok_or_else(|| {
            let message = format!("{ty} has {count} elements, here are {found}");
            Fault::new(self.scan.since(start), message)
        })
    }
}

/// The float that `text` says, if it says one.
fn float(text: &str) -> Option<f64> {
    match text {
        "inf" => return Some(f64::INFINITY),
        "-inf" => return Some(f64::NEG_INFINITY),
        "nan" => return Some(f64::NAN),
        _ => {}
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    // What distinguishes a float from an integer in the text.
    let fraction = text.bytes().any(|b| b".eE".contains(&b));
    if plain && fraction { text.parse().ok().filter(|x: &f64| x.is_finite()) } else { None }
}

/// Appends the element that `text` says; `None` if it says none of this type.
fn push_element(bytes: &mut Vec<u8>, dtype: DType, word: &str) -> Option<()> {
    // A NaN of other bits than the usual one is written by its bits, so that every tensor reads
    // back as it was.
    let bits = word.strip_prefix("nan(").and_then(|t| t.strip_suffix(')'));
    let plain = word.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    let text = if plain || matches!(word, "inf" | "-inf" | "nan") { word } else { "" };
    macro_rules! int {
        ($t:ty) => {
            bytes.extend_from_slice(&text.parse::<$t>().ok()?.to_ne_bytes())
        };
    }
    macro_rules! float {
        ($t:ty, $bits:ty, $read:expr) => {{
            let x: $t = match bits {
                Some(bits) => {
                    let x = <$t>::from_bits(<$bits>::from_str_radix(bits, 16).ok()?);
                    Some(x).filter(|x| x.is_nan())?
                }
                None if text == "nan" => <$t>::NAN,
                // A number that is too large for the type is an error and not an infinity.
                None => Some($read).filter(|x: &$t| x.is_finite() || text.ends_with("inf"))?,
            };
            bytes.extend_from_slice(&x.to_ne_bytes());
        }};
    }
    match dtype {
        DType::F64 => float!(f64, u64, text.parse().ok()?),
        DType::F32 => float!(f32, u32, text.parse().ok()?),
        DType::F16 => float!(f16, u16, f16::from_f64(text.parse().ok()?)),
        DType::Bf16 => float!(bf16, u16, bf16::from_f64(text.parse().ok()?)),
        DType::I64 => int!(i64),
        DType::I32 => int!(i32),
        DType::I16 => int!(i16),
        DType::I8 => int!(i8),
        DType::U64 => int!(u64),
        DType::U32 => int!(u32),
        DType::U16 => int!(u16),
        DType::U8 => int!(u8),
        DType::Bool => bytes.push(match word {
            "true" => 1,
            "false" => 0,
            _ => return None,
        }),
    }
    Some(())
}
