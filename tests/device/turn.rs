//! What tests take in turns: each commit some of a matrix, all of it where everything is checked.

/// The variable that says whose turn it is: a number, or `all`, which is the default.
const TURN: &str = "FANWISE_TURN";

/// The number of the turn; none where everything is checked.
fn turn() -> Option<usize> {
    match std::env::var(TURN).as_deref() {
        Err(_) | Ok("all") => None,
        Ok(number) => Some(number.parse().unwrap_or_else(|e| panic!("{TURN}={number}: {e}"))),
    }
}

/// What every turn has, and that of the others whose turn it is; `salt` tells tests apart.
pub(crate) fn turns<T: Clone>(always: &[T], others: &[T], salt: &str) -> Vec<T> {
    let salt = salt.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
    let one = |turn: usize| vec![others[turn.wrapping_add(salt) % others.len()].clone()];
    let chosen = turn().map_or_else(|| others.to_vec(), one);
    always.iter().cloned().chain(chosen).collect()
}
