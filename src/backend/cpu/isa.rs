//! The vector instructions of kernels. They change the speed and no bit.

use std::cell::Cell;

/// Vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Those that every machine has.
    Portable,
    /// AVX2 with fused multiply-adds.
    Avx2,
    /// AVX-512.
    Avx512,
}

impl Isa {
    /// All, the widest last.
    pub(crate) const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Those that this machine has, the widest last.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.arch().is_some())
    }

    /// The compiled form of loops; `None` on a machine without the instructions.
    pub(super) fn arch(self) -> Option<pulp::Arch> {
        match self {
            Self::Portable => Some(pulp::Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map(pulp::Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().map(pulp::Arch::V4),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => None,
        }
    }
}

thread_local! {
    /// What was chosen for the crew of this thread.
    static CHOSEN: Cell<Option<pulp::Arch>> = const { Cell::new(None) };
}

/// Makes kernels on this thread use these instructions, or without any the widest of the machine;
/// returns those that were chosen before.
pub(super) fn choose(arch: Option<pulp::Arch>) -> Option<pulp::Arch> {
    CHOSEN.replace(arch)
}

/// The instructions of kernels on this thread: the widest of the machine unless others were chosen.
#[inline]
pub(super) fn arch() -> pulp::Arch {
    // Nothing was chosen: what the machine has.
    CHOSEN.get().unwrap_or_default()
}

/// Those with vectors half as long as these have, which are the longest; `None` where there are
/// none.
pub(super) fn half(arch: pulp::Arch) -> Option<pulp::Arch> {
    #[cfg(target_arch = "x86_64")]
    if let pulp::Arch::V4(wide) = arch {
        return Some(pulp::Arch::V3(*wide));
    }
    let _ = arch;
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use rayon::prelude::*;

    use super::{Isa, arch};
    use crate::backend::Cpu;
    use crate::backend::host::Each;

    #[test]
    fn members_have_the_instructions_of_their_crew() {
        let named = |isa: Option<Isa>| {
            let cpu = Cpu::with(2, isa).unwrap();
            let (before, both) = (format!("{:?}", arch()), Barrier::new(2));
            let mut found = [const { String::new() }; 2];
            cpu.crew.enter(|| {
                found.par_iter_mut().each(|found| {
                    both.wait();
                    *found = format!("{:?}", arch());
                });
            });
            assert_eq!(found[0], found[1]);
            assert_eq!(format!("{:?}", arch()), before);
            found[0].clone()
        };
        for isa in Isa::available() {
            assert_eq!(named(Some(isa)), format!("{:?}", isa.arch().unwrap()));
        }
        let widest = Isa::available().last().unwrap();
        assert_eq!(named(None), format!("{:?}", widest.arch().unwrap()));
    }

    #[test]
    fn instructions_that_are_not_there_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(Cpu::with(1, Some(isa)).is_ok(), Isa::available().any(|own| own == isa));
        }
    }
}
