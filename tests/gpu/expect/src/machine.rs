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

/// What a GPU does in a second.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Its name, which is a part of the name that the driver tells.
    pub name: &'static str,
    /// Multiply-adds of `f32` at once: multiprocessors times lanes.
    pub lanes: f64,
    /// Cycles a second under load.
    pub clock: f64,
    /// The part of the cycles in which a kernel that computes issues an instruction.
    pub issue: f64,
    /// Bytes a second to and from memory, as a kernel that copies reaches them.
    pub memory: f64,
    /// Bytes a second from the cache that all multiprocessors share.
    pub cache: f64,
    /// Operations a second in `f64`.
    pub doubles: f64,
    /// Operations a second of a library's product in `bf16`.
    pub bf16: f64,
}

/// Rates of the H200 at 1.85 GHz: copies of 4.0 TB/s and products of 780 TFLOP/s as published
/// measurements have them; 0.80 of the cycles issue, as hand-written `f32` products of this shape
/// reach on other GPUs. The others have their data sheets' rates, by the same shares of the peak.
pub const MACHINES: [Machine; 4] = [
    Machine {
        name: "A100",
        lanes: 108.0 * 64.0,
        clock: 1.35e9,
        issue: 0.80,
        memory: 1.7e12,
        cache: 4.0e12,
        doubles: 9.7e12,
        bf16: 250e12,
    },
    Machine {
        name: "H100",
        lanes: 132.0 * 128.0,
        clock: 1.75e9,
        issue: 0.80,
        memory: 2.8e12,
        cache: 5.5e12,
        doubles: 34e12,
        bf16: 700e12,
    },
    Machine {
        name: "H200",
        lanes: 132.0 * 128.0,
        clock: 1.85e9,
        issue: 0.80,
        memory: 4.0e12,
        cache: 5.5e12,
        doubles: 34e12,
        bf16: 780e12,
    },
    Machine {
        name: "RTX 4090",
        lanes: 128.0 * 128.0,
        clock: 2.52e9,
        issue: 0.80,
        memory: 0.92e12,
        cache: 5.0e12,
        doubles: 1.29e12,
        bf16: 165e12,
    },
];

impl Machine {
    /// The GPU that a driver gives this name; none for a part of one, or a slower variant.
    pub fn named(name: &str) -> Option<&'static Self> {
        const OTHERS: [&str; 5] = ["MIG", "PCIe", "NVL", "PCIE", "Laptop"];
        let words: Vec<&str> = name.split([' ', '-']).collect();
        let known = |machine: &&Self| machine.name.split(' ').all(|word| words.contains(&word));
        let found = MACHINES.iter().find(known);
        found.filter(|_| OTHERS.iter().all(|other| !words.contains(other)))
    }

    /// Operations a second of a library's product in `f32`: 0.9 of the peak.
    pub(crate) fn f32(&self) -> f64 {
        0.9 * 2.0 * self.lanes * self.clock
    }

    /// Seconds for operations of which a kernel issues this part of its instructions.
    pub(crate) fn computes(&self, operations: f64, density: f64) -> f64 {
        operations / (2.0 * self.lanes * self.clock * self.issue * density)
    }
}
