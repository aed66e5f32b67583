//! The GPUs and what the model assumes of them. A number changes only when it was measured.

/// Seconds from the end of one kernel of a graph to the first work of the next.
pub const LAUNCH: f64 = 2.5e-6;

/// Bytes of a sample that a device keeps on chip at least: `sm_80` has 40 MB of cache beside what
/// its cores have.
pub(crate) const ON_CHIP: i64 = 32 << 20;

/// The parts of the instructions that multiply and add in the main loops of kernels, counted in
/// machine code for `sm_90a` of the models of the zoo by `tests/gpu/density.py`; of kernels alike
/// the median.
pub(crate) mod density {
    /// In tiles of which a thread computes so many elements.
    pub(crate) struct Tiles {
        pub(crate) elements: f64,
        /// Products, and convolutions of one tap.
        pub(crate) product: f64,
        /// Convolutions of several taps.
        pub(crate) taps: f64,
        /// Gradients of kernels.
        pub(crate) weights: f64,
    }

    pub(crate) const TILES: [Tiles; 3] = [
        Tiles { elements: 64.0, product: 0.85, taps: 0.80, weights: 0.74 },
        Tiles { elements: 32.0, product: 0.73, taps: 0.67, weights: 0.58 },
        Tiles { elements: 16.0, product: 0.55, taps: 0.38, weights: 0.53 },
    ];

    /// What is left of it in a tile that reads element by element.
    pub(crate) const SCALAR: f64 = 0.65;

    /// Convolutions of single channels, whose weights are in registers, with their chains.
    pub(crate) const DEPTHWISE: f64 = 0.30;
    /// Gradients of the kernels of convolutions of few channels.
    pub(crate) const FEW_CHANNELS: f64 = 0.23;
    /// Recurrent cells, with their activations.
    pub(crate) const CELL: f64 = 0.22;
}

/// Instructions that a multiprocessor issues in a cycle, for each lane of a warp: each of its four
/// parts one. Where it has fewer lanes for `f32`, other instructions are issued while these work.
const ISSUED: f64 = 128.0;

/// What GPUs reach of the numbers of their data sheets: one share of each kind for all of them,
/// that of the H200, on which 1.85 GHz, copies of 4.0 TB/s and a library's products of 780 TFLOP/s
/// were published.
mod share {
    /// Of the highest clock, under load.
    pub(super) const CLOCK: f64 = 1.85 / 1.98;
    /// Of the bandwidth of memory, by a kernel that copies.
    pub(super) const MEMORY: f64 = 4.0 / 4.8;
    /// Of the rate of tensor cores in `bf16`, by a library's product.
    pub(super) const BF16: f64 = 780.0 / 989.0;
    /// Of the cycles, in which a kernel that computes issues an instruction: what hand-written
    /// `f32` products of this shape reach.
    pub(super) const ISSUE: f64 = 0.80;
    /// Of the peak in `f32`, by a library's product.
    pub(super) const F32: f64 = 0.9;
}

/// What the data sheet of a GPU says.
struct Sheet {
    name: &'static str,
    /// What the driver calls it, behind the name of its maker.
    told: &'static str,
    multiprocessors: f64,
    lanes: f64,
    /// Cycles a second at most.
    clock: f64,
    /// Bytes a second to and from memory.
    memory: f64,
    /// Bytes a second from the shared cache, of which data sheets say nothing: an assumption.
    cache: f64,
    /// Operations a second in `f64`, with a multiply-add as two.
    doubles: f64,
    /// Operations a second of tensor cores in `bf16`, without sparsity.
    bf16: f64,
}

const SHEETS: [Sheet; 4] = [
    Sheet {
        name: "A100",
        told: "A100-SXM4-80GB",
        multiprocessors: 108.0,
        lanes: 64.0,
        clock: 1.41e9,
        memory: 2.039e12,
        cache: 4.0e12,
        doubles: 9.7e12,
        bf16: 312e12,
    },
    Sheet {
        name: "H100",
        told: "H100 80GB HBM3",
        multiprocessors: 132.0,
        lanes: 128.0,
        clock: 1.98e9,
        memory: 3.35e12,
        cache: 5.5e12,
        doubles: 34e12,
        bf16: 989e12,
    },
    Sheet {
        name: "H200",
        told: "H200",
        multiprocessors: 132.0,
        lanes: 128.0,
        clock: 1.98e9,
        memory: 4.8e12,
        cache: 5.5e12,
        doubles: 34e12,
        bf16: 989e12,
    },
    Sheet {
        name: "RTX 4090",
        told: "GeForce RTX 4090",
        multiprocessors: 128.0,
        lanes: 128.0,
        clock: 2.52e9,
        memory: 1.008e12,
        cache: 5.0e12,
        doubles: 1.29e12,
        bf16: 165e12,
    },
];

/// What a GPU does in a second.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Its name in tables.
    pub name: &'static str,
    /// What the driver calls it, behind the name of its maker.
    told: &'static str,
    /// Multiply-adds of `f32` at once: multiprocessors times lanes.
    pub lanes: f64,
    /// Instructions at once: multiprocessors times [`ISSUED`].
    issued: f64,
    /// Cycles a second under load.
    pub clock: f64,
    /// Bytes a second to and from memory, as a kernel that copies reaches them.
    pub memory: f64,
    /// Bytes a second from the cache that all multiprocessors share.
    pub cache: f64,
    /// Instructions a second in `f64`. Kernels are compiled without the fusion of products and
    /// sums, so each is one operation, half of what a data sheet counts.
    pub doubles: f64,
    /// Operations a second of a library's product in `bf16`.
    pub bf16: f64,
}

/// The GPUs that are known.
pub const MACHINES: [Machine; 4] = [
    Machine::of(&SHEETS[0]),
    Machine::of(&SHEETS[1]),
    Machine::of(&SHEETS[2]),
    Machine::of(&SHEETS[3]),
];

impl Machine {
    const fn of(sheet: &Sheet) -> Self {
        Self {
            name: sheet.name,
            told: sheet.told,
            lanes: sheet.multiprocessors * sheet.lanes,
            issued: sheet.multiprocessors * ISSUED,
            clock: sheet.clock * share::CLOCK,
            memory: sheet.memory * share::MEMORY,
            cache: sheet.cache,
            doubles: sheet.doubles / 2.0 * share::CLOCK,
            bf16: sheet.bf16 * share::BF16,
        }
    }

    /// The GPU that a driver calls so. Whatever has another name (a part of a GPU, one with less
    /// memory, in another form, for another market) has other rates, and no model here.
    pub fn named(name: &str) -> Option<&'static Self> {
        // Drivers before 470 leave the maker out.
        let told = name.strip_prefix("NVIDIA ").unwrap_or(name);
        MACHINES.iter().find(|machine| machine.told == told)
    }

    /// Operations a second of a library's product in `f32`.
    pub(crate) fn f32(&self) -> f64 {
        share::F32 * 2.0 * self.lanes * self.clock
    }

    /// Seconds for operations of which a kernel issues this part of its instructions.
    pub(crate) fn computes(&self, operations: f64, density: f64) -> f64 {
        let at_once = self.lanes.min(self.issued * density);
        operations / (2.0 * at_once * self.clock * share::ISSUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_by_the_names_of_their_drivers() {
        for (told, name) in [
            ("NVIDIA A100-SXM4-80GB", Some("A100")),
            ("A100-SXM4-80GB", Some("A100")),
            ("NVIDIA H100 80GB HBM3", Some("H100")),
            ("NVIDIA H200", Some("H200")),
            ("NVIDIA GeForce RTX 4090", Some("RTX 4090")),
            // Less memory, and that slower.
            ("NVIDIA A100-SXM4-40GB", None),
            ("NVIDIA A100-PCIE-40GB", None),
            ("NVIDIA A100 80GB PCIe", None),
            ("NVIDIA H100 PCIe", None),
            ("NVIDIA H100 NVL", None),
            ("NVIDIA H200 NVL", None),
            ("NVIDIA GH200 480GB", None),
            ("NVIDIA H20", None),
            // Fewer multiprocessors.
            ("NVIDIA GeForce RTX 4090 D", None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
            ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
            ("GRID A100-40C", None),
            ("Fake GPU", None),
        ] {
            assert_eq!(Machine::named(told).map(|machine| machine.name), name, "{told}");
        }
    }

    /// 34 TFLOP/s of multiply-adds are 17e12 instructions a second, 0.934 of them under load.
    #[test]
    fn an_instruction_in_doubles_is_one_operation() {
        let h200 = &MACHINES[2];
        assert!((15.8e12..15.9e12).contains(&h200.doubles), "{}", h200.doubles);
    }

    /// A kernel half of whose instructions multiply keeps the 64 lanes of `sm_80` busy, and half of
    /// the 128 of `sm_90`.
    #[test]
    fn lanes_are_fewer_than_what_is_issued() {
        let seconds = |machine: &Machine, density| machine.computes(1e12, density);
        let [a100, h200] = [&MACHINES[0], &MACHINES[2]];
        assert!(seconds(a100, 0.5) <= seconds(a100, 1.0));
        assert!((seconds(a100, 0.25) / seconds(a100, 0.5) - 2.0).abs() < 1e-9);
        assert!((seconds(h200, 0.5) / seconds(h200, 1.0) - 2.0).abs() < 1e-9);
    }

    /// The shares are those of the H200.
    #[test]
    fn rates_of_the_h200_are_those_that_were_published() {
        let near = |found: f64, rate: f64| (found / rate - 1.0).abs() < 1e-9;
        let h200 = &MACHINES[2];
        assert!(near(h200.clock, 1.85e9) && near(h200.memory, 4e12) && near(h200.bf16, 780e12));
    }
}
