//! The form of an entry.

use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::value::{Arg, Args};

/// What becomes of the mask of a layer's first tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format::keras) enum Masks {
    /// The results have it.
    Kept,
    /// The results have none.
    Dropped,
    /// The layer says so itself.
    Own,
}

/// A layer: how it is called in Keras, and what it becomes.
pub(in crate::format::keras) struct Layer {
    pub(in crate::format::keras) class: &'static str,
    pub(in crate::format::keras) masks: Masks,
    pub(in crate::format::keras) call: for<'s, 'c> fn(&mut At<'s, 'c>, &Args<'c>) -> Read<Arg<'c>>,
}

/// Entries of layers, a line each: the class, what becomes of masks, and the function.
macro_rules! layers {
    ($($class:literal $masks:ident => $call:expr;)*) => {
        pub(super) const LAYERS: &[crate::format::keras::layers::entry::Layer] = &[$(
            crate::format::keras::layers::entry::Layer {
                class: $class,
                masks: crate::format::keras::layers::entry::Masks::$masks,
                call: $call,
            },
        )*];
    };
}
pub(super) use layers;
