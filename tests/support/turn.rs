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
