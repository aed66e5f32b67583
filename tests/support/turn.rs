//! What tests take in turns: each commit some of a matrix, all of it where everything is checked.

/// The variable that says whose turn it is: a number, or `all`, which is the default.
const TURN: &str = "FANWISE_TURN";

/// The variable that says with which seed draws begin.
const SEED: &str = "FANWISE_SEED";

/// The number of the turn; none where everything is checked.
fn turn() -> Option<usize> {
    match std::env::var(TURN).as_deref() {
        Err(_) | Ok("all") => None,
        Ok(number) => Some(number.parse().unwrap_or_else(|e| panic!("{TURN}={number}: {e}"))),
    }
}

/// The first seed of what is drawn at random; none where each run draws the same.
///
/// # Panics
/// If what is given is no number.
pub fn seed() -> Option<u64> {
    let given = std::env::var(SEED).ok()?;
    Some(given.parse().unwrap_or_else(|e| panic!("{SEED}={given}: {e}")))
}

/// A number that differs from turn to turn, also between those of one [`part`]; none where
/// everything is checked.
pub(crate) fn scattered() -> Option<usize> {
    // The fraction of the golden ratio: the upper bits follow no small divisor.
    let product = (turn()? as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [.., low, high] = product.to_le_bytes();
    Some(u16::from_le_bytes([low, high]).into())
}

/// One in `parts` of them, those whose turn it is, others for each `salt`; all of them where
/// everything is checked.
pub fn part<T>(all: impl Iterator<Item = T>, parts: usize, salt: usize) -> impl Iterator<Item = T> {
    let turn = turn().map(|turn| turn.wrapping_add(salt) % parts);
    let own = all.enumerate().filter(move |(i, _)| turn.is_none_or(|turn| i % parts == turn));
    own.map(|(_, one)| one)
}

/// What every turn has, and that of the others whose turn it is; `salt` tells tests apart.
pub fn turns<T: Clone>(always: &[T], others: &[T], salt: &str) -> Vec<T> {
    let salt = salt.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
    let one = |turn: usize| vec![others[turn.wrapping_add(salt) % others.len()].clone()];
    let chosen = turn().map_or_else(|| others.to_vec(), one);
    always.iter().cloned().chain(chosen).collect()
}
