//! The CUDA text of the functions of `float`: the generic ones of [`functions`], applied to
//! expressions instead of numbers.
//!
//! Each operation becomes a statement, `const float v3 = v1 * v2;`, in the order of the reference
//! evaluation. So kernels have the same bits, and no coefficient is written twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};
use std::sync::LazyLock;

use super::builder::float;
use crate::op::functions::{self, Bits, Lanes, Rare};

/// The name below `kernels/` under which kernels include the text.
pub(super) const FILE: &str = "include/float.cuh";

/// What stands before the functions.
const HEAD: &str = "// The functions of `float`, written from src/op/support/functions by \
    src/codegen/float.rs.\n#include \"common.cuh\"\n";

/// The text with all functions.
pub(super) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| with(|_| true));
    &TEXT
}

/// The text with the functions that another text calls.
pub(super) fn used_by(text: &str) -> String {
    with(|name| {
        text.match_indices(name).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let is_whole = !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            is_whole && text[at + name.len()..].starts_with('(')
        })
    })
}

fn with(wanted: impl Fn(&str) -> bool) -> String {
    static ALL: LazyLock<Vec<(&str, String)>> = LazyLock::new(written);
    let functions = ALL.iter().filter(|(name, _)| wanted(name)).map(|(_, text)| text.as_str());
    std::iter::once(HEAD).chain(functions).collect()
}

/// What a function is made of: a variable, an argument, or a constant.
#[derive(Clone, Copy)]
enum Word {
    Variable(usize),
    Argument(&'static str),
    Float(f32),
    Bits(u32),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(i) => write!(f, "v{i}"),
            Self::Argument(name) => f.write_str(name),
            Self::Float(x) => f.write_str(&float(*x)),
            Self::Bits(x) => write!(f, "{x:#x}u"),
        }
    }
}

/// The function that is being written.
#[derive(Default)]
struct Writer(RefCell<Body>);

#[derive(Default)]
struct Body {
    text: String,
    indent: usize,
    variables: usize,
    /// The variables that hold an expression already.
    known: BTreeMap<String, usize>,
}

impl Body {
    fn line(&mut self, text: fmt::Arguments<'_>) {
        let indent = 4 * (self.indent + 1);
        // Writing to a string does not fail.
        writeln!(self.text, "{:indent$}{text}", "").unwrap_or(());
    }
}

impl Writer {
    /// The value of an expression, in a variable.
    fn value(&self, ty: &str, text: String) -> Word {
        let mut body = self.0.borrow_mut();
        if let Some(known) = body.known.get(&text) {
            return Word::Variable(*known);
        }
        let i = body.variables;
        body.variables += 1;
        body.line(format_args!("const {ty} v{i} = {text};"));
        body.known.insert(text, i);
        Word::Variable(i)
    }

    /// A variable that changes.
    fn variable(&self, from: Word) -> usize {
        let mut body = self.0.borrow_mut();
        let i = body.variables;
        body.variables += 1;
        body.line(format_args!("float v{i} = {from};"));
        i
    }

    /// Writes statements for where a condition holds; what they define is not known behind them.
    fn only_where(&self, condition: Word, statements: impl FnOnce()) {
        let known = {
            let mut body = self.0.borrow_mut();
            body.line(format_args!("if ({condition}) {{"));
            body.indent += 1;
            body.known.clone()
        };
        statements();
        let mut body = self.0.borrow_mut();
        body.known = known;
        body.indent -= 1;
        body.line(format_args!("}}"));
    }

    fn assign(&self, to: usize, from: Word) {
        self.0.borrow_mut().line(format_args!("v{to} = {from};"));
    }

    fn argument(&self, name: &'static str) -> Number<'_> {
        Number { writer: self, word: Word::Argument(name) }
    }

    /// The whole function with this result; the next one begins.
    fn finish(&self, head: &str, result: Word) -> String {
        let Body { text, .. } = self.0.take();
        format!("\n__device__ __forceinline__ float {head} {{\n{text}    return {result};\n}}\n")
    }
}

/// A number of type `float`, 32 bits, and a truth value.
macro_rules! value {
    ($($name:ident: $ty:literal { $($trait:ident $method:ident $op:literal),* })*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name<'w> {
                writer: &'w Writer,
                word: Word,
            }

            impl $name<'_> {
                fn with(self, word: Word) -> Self {
                    Self { writer: self.writer, word }
                }

                /// The value of an expression of this type.
                fn expression(self, text: String) -> Self {
                    self.with(self.writer.value($ty, text))
                }
            }

            $(impl $trait for $name<'_> {
                type Output = Self;

                fn $method(self, other: Self) -> Self {
                    self.expression(format!(concat!("{} ", $op, " {}"), self.word, other.word))
                }
            })*
        )*
    };
}

value! {
    Number: "float" { Add add "+", Sub sub "-", Mul mul "*", Div div "/" }
    Digits: "u32" { BitAnd bitand "&", BitOr bitor "|", BitXor bitxor "^" }
    Truth: "bool" { BitAnd bitand "&&", BitOr bitor "||" }
}

/// The same with a constant on the right.
macro_rules! with_constants {
    ($($trait:ident $method:ident),*) => {
        $(impl $trait<f32> for Number<'_> {
            type Output = Self;

            fn $method(self, other: f32) -> Self {
                $trait::$method(self, self.of(other))
            }
        })*
    };
}

with_constants!(Add add, Sub sub, Mul mul, Div div);

impl Neg for Number<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        if let Word::Float(x) = self.word {
            return self.of(-x);
        }
        self.expression(format!("-{}", self.word))
    }
}

impl Not for Truth<'_> {
    type Output = Self;

    fn not(self) -> Self {
        self.expression(format!("!{}", self.word))
    }
}

impl<'w> Number<'w> {
    fn bits_of(self, text: String) -> Digits<'w> {
        Digits { writer: self.writer, word: self.word }.expression(text)
    }

    fn truth(self, text: String) -> Truth<'w> {
        Truth { writer: self.writer, word: self.word }.expression(text)
    }
}

impl<'w> Lanes for Number<'w> {
    type Bits = Digits<'w>;
    type Mask = Truth<'w>;

    fn of(self, x: f32) -> Self {
        self.with(Word::Float(x))
    }

    fn abs(self) -> Self {
        self.expression(format!("fabsf({})", self.word))
    }

    fn copysign(self, sign: Self) -> Self {
        self.expression(format!("copysignf({}, {})", self.word, sign.word))
    }

    fn sqrt(self) -> Self {
        self.expression(format!("sqrtf({})", self.word))
    }

    fn bits(self) -> Digits<'w> {
        self.bits_of(format!("__float_as_uint({})", self.word))
    }

    fn less(self, other: Self) -> Truth<'w> {
        self.truth(format!("{} < {}", self.word, other.word))
    }

    fn equals(self, other: Self) -> Truth<'w> {
        self.truth(format!("{} == {}", self.word, other.word))
    }

    fn choose(mask: Truth<'w>, yes: Self, no: Self) -> Self {
        yes.expression(format!("{} ? {} : {}", mask.word, yes.word, no.word))
    }

    fn rarely<R: Rare<Self, K>, const K: usize>(
        mask: Truth<'w>,
        common: [Self; K],
        x: Self,
    ) -> [Self; K] {
        let writer = x.writer;
        let variables = common.map(|x| writer.variable(x.word));
        writer.only_where(mask.word, || {
            for (to, from) in variables.into_iter().zip(R::of(x)) {
                writer.assign(to, from.word);
            }
        });
        variables.map(|i| x.with(Word::Variable(i)))
    }
}

impl<'w> Bits for Digits<'w> {
    type Number = Number<'w>;
    type Mask = Truth<'w>;

    fn of(self, x: u32) -> Self {
        self.with(Word::Bits(x))
    }

    fn plus(self, other: Self) -> Self {
        self.expression(format!("{} + {}", self.word, other.word))
    }

    fn minus(self, other: Self) -> Self {
        self.expression(format!("{} - {}", self.word, other.word))
    }

    fn times(self, other: Self) -> Self {
        self.expression(format!("{} * {}", self.word, other.word))
    }

    fn times_high(self, other: Self) -> Self {
        self.expression(format!("__umulhi({}, {})", self.word, other.word))
    }

    fn up(self, places: Self) -> Self {
        self.expression(format!("{} << {}", self.word, places.word))
    }

    fn down(self, places: Self) -> Self {
        self.expression(format!("{} >> {}", self.word, places.word))
    }

    fn down_signed(self, places: Self) -> Self {
        self.expression(format!("(u32)((i32){} >> {})", self.word, places.word))
    }

    fn less(self, other: Self) -> Truth<'w> {
        let truth = Truth { writer: self.writer, word: self.word };
        truth.expression(format!("{} < {}", self.word, other.word))
    }

    fn choose(mask: Truth<'w>, yes: Self, no: Self) -> Self {
        yes.expression(format!("{} ? {} : {}", mask.word, yes.word, no.word))
    }

    fn number(self) -> Number<'w> {
        let number = Number { writer: self.writer, word: self.word };
        number.expression(format!("__uint_as_float({})", self.word))
    }

    fn rounded(self) -> Number<'w> {
        let number = Number { writer: self.writer, word: self.word };
        number.expression(format!("(float)(i32){}", self.word))
    }
}

/// A function of one number, and one of two.
type One<'w> = fn(Number<'w>) -> Number<'w>;
type Two<'w> = fn(Number<'w>, Number<'w>) -> Number<'w>;

/// The functions of one number by the names that kernels call.
fn unary<'w>() -> [(&'static str, One<'w>); 21] {
    [
        ("exp_of", functions::exp),
        ("exp_m1_of", functions::exp_m1),
        ("log_of", functions::ln),
        ("log1p_of", functions::ln_1p),
        ("sin_of", functions::sin),
        ("cos_of", functions::cos),
        ("tan_of", functions::tan),
        ("asin_of", functions::asin),
        ("acos_of", functions::acos),
        ("atan_of", functions::atan),
        ("sinh_of", functions::sinh),
        ("cosh_of", functions::cosh),
        ("tanh_of", functions::tanh),
        ("asinh_of", functions::asinh),
        ("acosh_of", functions::acosh),
        ("atanh_of", functions::atanh),
        ("erf_of", functions::erf),
        ("sigmoid", functions::sigmoid),
        ("mish", functions::mish),
        ("gelu", functions::gelu),
        ("gelu_tanh", functions::gelu_tanh),
    ]
}

/// Those of two numbers.
fn binary<'w>() -> [(&'static str, Two<'w>); 2] {
    [("pow_of", functions::pow), ("times_sigmoid", functions::times_sigmoid)]
}

/// Every function, by its name.
fn written() -> Vec<(&'static str, String)> {
    let writer = Writer::default();
    let [x, y] = ["x", "y"].map(|name| writer.argument(name));
    let one = unary().into_iter().map(|(name, f)| {
        let result = f(x).word;
        (name, writer.finish(&format!("{name}(float x)"), result))
    });
    let two = binary().into_iter().map(|(name, f)| {
        let result = f(x, y).word;
        (name, writer.finish(&format!("{name}(float x, float y)"), result))
    });
    one.chain(two).collect()
}

#[cfg(test)]
mod tests {
    use support::snap;

    #[test]
    fn the_text_of_the_functions() {
        snap::assert("codegen", "functions", super::text());
    }

    #[test]
    fn functions_that_are_called_are_there() {
        let text = super::used_by("y = asin_of(x) + tanh_of + my_exp_of(x); gelu(x)");
        for (name, is_there) in
            [("asin_of", true), ("gelu", true), ("sin_of", false), ("tanh_of", false)]
        {
            assert_eq!(text.contains(&format!("float {name}(float x)")), is_there, "{name}");
        }
        assert_eq!(text.matches("__device__").count(), 2, "{text}");
    }
}
