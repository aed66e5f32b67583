//! Models in other sizes than their own.

/// How a model differs in size from the one that was published; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scale {
    /// What the features of every layer are divided by, rounded up.
    pub(super) narrow: Option<usize>,
    /// The height and width of images.
    pub(super) pixels: Option<i64>,
    /// The steps of sequences.
    pub(super) steps: Option<i64>,
}

impl Scale {
    /// Reads `narrow=8,pixels=64,steps=5`, in any order.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut scale = Self::default();
        for option in text.split(',') {
            let (key, number) = option.split_once('=')?;
            let number: u16 = number.parse().ok().filter(|n| *n > 0)?;
            let is_new = match key {
                "narrow" => scale.narrow.replace(number.into()).is_none(),
                "pixels" => scale.pixels.replace(number.into()).is_none(),
                "steps" => scale.steps.replace(number.into()).is_none(),
                _ => false,
            };
            is_new.then_some(())?;
        }
        Some(scale)
    }

    /// True if a model that has these options can take `self`.
    pub(super) fn suits(self, has: Self) -> bool {
        (self.narrow.is_none() || has.narrow.is_some())
            && (self.pixels.is_none() || has.pixels.is_some())
            && (self.steps.is_none() || has.steps.is_some())
    }
}
