//! The registers of a warp: one row of 32 lanes for each register of up to 32 bits, two rows for
//! each register of 64 bits.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// The mask of all lanes.
pub const ALL: u32 = u32::MAX;

/// One row: 32 lanes of 32 bits, aligned for lanes of 64 bits.
type Row = [u64; 16];

/// The registers, predicates and carry flags of one warp.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    cells: Vec<Row>,
    /// One bit of each lane for each predicate register.
    pub preds: Vec<u32>,
    /// The carry flag of each lane.
    pub carry: u32,
}

impl Rows {
    /// Registers that all hold 0.
    pub fn new(rows: usize, preds: usize) -> Self {
        Self { cells: vec![[0; 16]; rows], preds: vec![0; preds], carry: 0 }
    }

    /// A register of up to 32 bits.
    #[inline]
    pub fn narrow(&self, row: u32) -> &[u32; LANES] {
        bytemuck::cast_ref(&self.cells[row as usize])
    }

    /// A register of up to 32 bits, to be changed.
    #[inline]
    pub fn narrow_mut(&mut self, row: u32) -> &mut [u32; LANES] {
        bytemuck::cast_mut(&mut self.cells[row as usize])
    }

    /// A register of 64 bits.
    ///
    /// # Panics
    /// When it has no second row, which the decoder does not make.
    #[inline]
    pub fn wide(&self, row: u32) -> &[u64; LANES] {
        let pair: &[Row; 2] =
            self.cells[row as usize..].first_chunk().expect("a wide register has two rows");
        bytemuck::cast_ref(pair)
    }

    /// A register of 64 bits, to be changed.
    ///
    /// # Panics
    /// As [`Rows::wide`].
    #[inline]
    pub fn wide_mut(&mut self, row: u32) -> &mut [u64; LANES] {
        let pair: &mut [Row; 2] =
            self.cells[row as usize..].first_chunk_mut().expect("a wide register has two rows");
        bytemuck::cast_mut(pair)
    }

    /// The lanes of a register as `T`.
    #[inline]
    pub fn get<T: Lane>(&self, row: u32) -> [T; LANES] {
        T::read(self, row)
    }

    /// Writes the lanes of a register that `mask` names.
    #[inline]
    pub fn put<T: Lane>(&mut self, row: u32, value: &[T; LANES], mask: u32) {
        T::write(self, row, value, mask);
    }

    /// Sets the lanes of a predicate that `mask` names.
    #[inline]
    pub fn put_pred(&mut self, pred: u32, value: u32, mask: u32) {
        let old = self.preds[pred as usize];
        self.preds[pred as usize] = (old & !mask) | (value & mask);
    }
}

/// A type that a register's lanes can be read as.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Whether it takes a register of 64 bits.
    const WIDE: bool;
    /// All lanes of a register.
    fn read(rows: &Rows, row: u32) -> [Self; LANES];
    /// Writes the lanes that `mask` names.
    fn write(rows: &mut Rows, row: u32, value: &[Self; LANES], mask: u32);
}

/// Copies the lanes that `mask` names.
#[inline]
fn blend<T: Copy>(to: &mut [T; LANES], from: &[T; LANES], mask: u32) {
    if mask == ALL {
        *to = *from;
        return;
    }
    for i in 0..LANES {
        if mask >> i & 1 != 0 {
            to[i] = from[i];
        }
    }
}

/// Implements [`Lane`] for types that have the register's own width.
macro_rules! lanes {
    ($wide:literal, $read:ident, $write:ident, $($t:ty)*) => { $(
        impl Lane for $t {
            const WIDE: bool = $wide;
            #[inline]
            fn read(rows: &Rows, row: u32) -> [Self; LANES] {
                bytemuck::cast(*rows.$read(row))
            }
            #[inline]
            fn write(rows: &mut Rows, row: u32, value: &[Self; LANES], mask: u32) {
                blend(bytemuck::cast_mut(rows.$write(row)), value, mask);
            }
        }
    )* };
}
lanes!(false, narrow, narrow_mut, u32 i32 f32);
lanes!(true, wide, wide_mut, u64 i64 f64);

/// Implements [`Lane`] for types that take the low bits of a 32-bit lane; the rest is zero.
macro_rules! low_lanes {
    ($($t:ty, $bits:ty;)*) => { $(
        impl Lane for $t {
            const WIDE: bool = false;
            #[inline]
            #[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
            #[allow(clippy::cast_possible_wrap, reason = "the bits are meant")]
            fn read(rows: &Rows, row: u32) -> [Self; LANES] {
                rows.narrow(row).map(|v| <$t as From<Low<$bits>>>::from(Low(v as $bits)))
            }
            #[inline]
            fn write(rows: &mut Rows, row: u32, value: &[Self; LANES], mask: u32) {
                let bits = value.map(|v| u32::from(Low::<$bits>::from(v).0));
                blend(rows.narrow_mut(row), &bits, mask);
            }
        }
    )* };
}

/// Bits at the low end of a lane.
pub struct Low<T>(pub T);

/// Bits of a half-precision number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Half(pub u16);

/// Bits of a `bfloat16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brain(pub u16);

/// Conversions between a lane type and its bits.
macro_rules! bits {
    ($($t:ty, $bits:ty, $from:expr, $to:expr;)*) => { $(
        impl From<Low<$bits>> for $t {
            fn from(low: Low<$bits>) -> Self { ($from)(low.0) }
        }
        impl From<$t> for Low<$bits> {
            fn from(value: $t) -> Self { Low(($to)(value)) }
        }
    )* };
}
bits! {
    u16, u16, |v| v, |v| v;
    i16, u16, u16::cast_signed, i16::cast_unsigned;
    u8, u8, |v| v, |v| v;
    i8, u8, u8::cast_signed, i8::cast_unsigned;
    Half, u16, Half, |v: Half| v.0;
    Brain, u16, Brain, |v: Brain| v.0;
}
low_lanes! { u16, u16; i16, u16; u8, u8; i8, u8; Half, u16; Brain, u16; }
