use crate::types::Quoted;

/// The bytes that a reader may take for the tensors a file declares.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: u64,
    used: u64,
}

/// A tensor that does not fit in the memory allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tensor {} takes {asked} bytes, which with {used} bytes before it is beyond the \
     limit of {limit} bytes",
    Quoted(.tensor)
)]
pub struct OverBudget {
    /// The tensor's name.
    pub tensor: String,
    /// The bytes it takes.
    pub asked: u64,
    /// The bytes that others take already.
    pub used: u64,
    /// The bytes allowed for all.
    pub limit: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
    }

    /// The bytes charged so far.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes back `bytes` that were charged.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Charges `bytes` for `tensor`, or fails and charges nothing.
    pub(crate) fn charge(&mut self, tensor: &str, bytes: u64) -> Result<(), OverBudget> {
        let (used, limit) = (self.used, self.limit);
        if let Some(sum) = used.checked_add(bytes).filter(|sum| *sum <= limit) {
            self.used = sum;
            return Ok(());
        }
        Err(OverBudget { tensor: tensor.to_owned(), asked: bytes, used, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn a_tensor_beyond_the_limit_is_refused_and_not_charged() {
        let mut budget = Budget::new(100);
        budget.charge("a", 60).unwrap();
        let error = budget.charge("b", 41).unwrap_err();
        assert_eq!((error.asked, error.used, error.limit), (41, 60, 100));
        budget.charge("c", 40).unwrap();
        assert!(budget.charge("d", u64::MAX).is_err());
    }
}
