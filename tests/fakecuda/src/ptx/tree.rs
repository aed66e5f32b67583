//! The syntax tree of a PTX module, before anything is resolved.

/// A type of a register or a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// A predicate.
    Pred,
    /// Untyped bits; the number is the width in bits.
    B(u8),
    /// An unsigned integer of that many bits.
    U(u8),
    /// A signed integer of that many bits.
    S(u8),
    /// IEEE half precision.
    F16,
    /// Two halves in one 32-bit register.
    F16x2,
    /// `bfloat16`.
    Bf16,
    /// Two `bfloat16` in one 32-bit register.
    Bf16x2,
    /// A tensor-core 19-bit float in a 32-bit register.
    Tf32,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl Ty {
    /// The type whose PTX spelling, without the dot, is `text`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pred" => Self::Pred,
            "b8" => Self::B(8),
            "b16" => Self::B(16),
            "b32" => Self::B(32),
            "b64" => Self::B(64),
            "b128" => Self::B(128),
            "u8" => Self::U(8),
            "u16" => Self::U(16),
            "u32" => Self::U(32),
            "u64" => Self::U(64),
            "s8" => Self::S(8),
            "s16" => Self::S(16),
            "s32" => Self::S(32),
            "s64" => Self::S(64),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// The width in bits; a predicate has one.
    pub fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B(n) | Self::U(n) | Self::S(n) => u32::from(n),
            Self::F16 | Self::Bf16 => 16,
            Self::F16x2 | Self::Bf16x2 | Self::Tf32 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// The size in memory.
    pub fn bytes(self) -> usize {
        (self.bits() as usize).div_ceil(8)
    }

    /// Whether the type is a signed integer.
    pub fn signed(self) -> bool {
        matches!(self, Self::S(_))
    }

    /// Whether the type is a floating-point format.
    pub fn float(self) -> bool {
        !matches!(self, Self::Pred | Self::B(_) | Self::U(_) | Self::S(_))
    }
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Any of the others, told apart by the address.
    Generic,
    /// Memory of the device.
    Global,
    /// Constant memory, initialised when the module is loaded.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters of a kernel or a call.
    Param,
}

/// A variable or a parameter.
#[derive(Clone, Debug)]
pub struct Var {
    /// The name, made unique within its function.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Alignment of its first byte.
    pub align: usize,
    /// Its size in bytes; 0 for an array whose size the launch gives.
    pub size: usize,
    /// The bytes it starts with; empty means zeros.
    pub init: Vec<u8>,
    /// Places in `init` that hold the address of another variable.
    pub pointers: Vec<(usize, String)>,
}

/// A declaration of registers: `prefix<count>`, or one register when `count` is `None`.
#[derive(Clone, Debug)]
pub struct RegDecl {
    /// The name, or what comes before the number.
    pub prefix: String,
    /// How many numbered registers the declaration makes.
    pub count: Option<u32>,
    /// The type of each.
    pub ty: Ty,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A register, a special register, a label or a variable's name.
    Name(String),
    /// A negated predicate.
    Not(String),
    /// An integer; the bits are those of its two's complement.
    Int(i128),
    /// The bits of a single-precision constant, `0f…`.
    F32(u32),
    /// The bits of a double-precision constant, `0d…` or decimal.
    F64(u64),
    /// `{a, b, …}`.
    Vector(Vec<Arg>),
    /// `[base + offset]`; the base is absent for an absolute address.
    Address(Option<String>, i64),
    /// `(a, b, …)` of a call.
    List(Vec<Arg>),
    /// `p|q`, the two results of `setp`, `shfl` and `match`.
    Pair(String, String),
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instr {
    /// The predicate that guards it, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// The opcode with its modifiers, such as `fma.rn.f32`.
    pub op: String,
    /// The operands.
    pub args: Vec<Arg>,
    /// The line in the PTX text.
    pub line: u32,
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub enum Stmt {
    /// A place to branch to.
    Label(String),
    /// An instruction.
    Instr(Instr),
    /// The source file's number and line of what follows.
    Loc(u32, u32),
    /// A named list of labels for `brx.idx`.
    Targets(String, Vec<String>),
}

/// A kernel or a device function.
#[derive(Clone, Debug, Default)]
pub struct Func {
    /// The name.
    pub name: String,
    /// Whether it can be launched.
    pub entry: bool,
    /// Whether it has a body.
    pub defined: bool,
    /// The parameters, in order.
    pub params: Vec<Var>,
    /// The values it returns, in order.
    pub returns: Vec<Var>,
    /// Its registers.
    pub regs: Vec<RegDecl>,
    /// Its own variables: shared, local and the parameters of calls it makes.
    pub vars: Vec<Var>,
    /// Its statements.
    pub body: Vec<Stmt>,
    /// The most threads a block may have (0: not given).
    pub max_threads: u32,
}

/// A module.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Major and minor number of the PTX version.
    pub version: (u32, u32),
    /// The target, such as `sm_80`.
    pub target: String,
    /// Variables outside of functions.
    pub vars: Vec<Var>,
    /// Kernels and device functions.
    pub funcs: Vec<Func>,
    /// Source files by number.
    pub files: Vec<(u32, String)>,
}
