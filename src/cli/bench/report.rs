//! What was measured, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::backend::Peak;
use crate::cli::{ui, version};

/// What some runs took.
pub(super) struct Measured {
    pub(super) seconds: Vec<f64>,
    /// The bytes that they needed at most, where that is known.
    pub(super) memory: Option<u64>,
}

/// Everything that was measured.
pub(super) struct Bench {
    /// The processors that all runs were kept on; none if they were not.
    pub(super) cores: Vec<usize>,
    /// What these do at most, if the models run on them.
    pub(super) peak: Option<Peak>,
    pub(super) rounds: u32,
    pub(super) cases: Vec<Case>,
}

/// A model in batches of some rows.
pub(super) struct Case {
    pub(super) model: String,
    pub(super) rows: u32,
    /// What was measured in turn; the first is one device.
    pub(super) contestants: Vec<Contestant>,
}

/// One of those that are measured in turn.
pub(super) struct Contestant {
    name: String,
    /// Its multiplications and additions in a batch, where they are known.
    operations: Option<f64>,
    /// The median time of each round, in seconds.
    rounds: Vec<f64>,
    memory: Option<u64>,
}

/// The median; 0 of nothing.
pub(super) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len().is_multiple_of(2)) {
        (Some(high), true) => f64::midpoint(sorted[middle - 1], *high),
        (Some(only), false) => *only,
        (None, _) => 0.0,
    }
}

/// The geometric mean.
fn mean(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|x| x.ln()).sum::<f64>() / numbers.len() as f64).exp()
}

impl Contestant {
    pub(super) fn new(name: String, operations: Option<f64>) -> Self {
        Self { name, operations, rounds: Vec::new(), memory: None }
    }

    /// Adds a round.
    pub(super) fn add(&mut self, round: &Measured) {
        self.rounds.push(median(&round.seconds));
        self.memory = self.memory.max(round.memory);
    }

    fn seconds(&self) -> f64 {
        median(&self.rounds)
    }

    /// The distance of the slowest round from the fastest, relative to the median.
    fn spread(&self) -> f64 {
        let least = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rounds.iter().copied().fold(0.0, f64::max);
        (most - least) / self.seconds()
    }

    /// How many times as fast as another, which ran in the same rounds.
    fn speed(&self, other: &Self) -> f64 {
        let ratios = self.rounds.iter().zip(&other.rounds).map(|(own, other)| other / own);
        median(&ratios.collect::<Vec<_>>())
    }

    /// The share of what the machine does at most.
    fn share(&self, peak: Option<Peak>) -> Option<f64> {
        let operations = self.operations.filter(|operations| *operations > 0.0)?;
        Some(operations / self.seconds() / peak?.operations)
    }
}

impl Case {
    fn one(&self) -> &Contestant {
        &self.contestants[0]
    }

    fn text(&self, peak: Option<Peak>) -> String {
        let of = |own: &Contestant| {
            let share = own.share(peak);
            vec![
                own.name.clone(),
                format!("{:.3?}", Duration::from_secs_f64(own.seconds())),
                format!("{:.1} %", 100.0 * own.spread()),
                format!("{:.1}", f64::from(self.rows) / own.seconds()),
                format!("{:.2}", own.speed(self.one())),
                share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
                own.memory.map_or("-".to_owned(), ui::bytes),
            ]
        };
        let rows: Vec<Vec<String>> = self.contestants.iter().map(of).collect();
        let head = ["what", "time", "spread", "rows/s", "speed", "of the peak", "memory"];
        format!("\n{}, {}\n{}", self.model, ui::rows(self.rows), ui::table(&head, &rows))
    }

    fn json(&self, peak: Option<Peak>) -> Value {
        let of = |own: &Contestant| {
            json!({
                "name": own.name,
                "seconds": own.seconds(),
                "spread": own.spread(),
                "rows_per_second": f64::from(self.rows) / own.seconds(),
                "speed": own.speed(self.one()),
                "share_of_peak": own.share(peak),
                "memory_bytes": own.memory,
                "rounds": own.rounds,
            })
        };
        let all: Vec<Value> = self.contestants.iter().map(of).collect();
        json!({ "model": self.model, "rows": self.rows, "measured": all })
    }
}

impl Bench {
    pub(super) fn text(&self) -> String {
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        let on = match cores.as_slice() {
            [] => "on all processors that were free".to_owned(),
            [only] => format!("on processor {only}"),
            all => format!("on processors {}", all.join(", ")),
        };
        let rounds = if self.rounds == 1 { "round" } else { "rounds in turn" };
        let mut text = format!("fanwise {}, {} {rounds}, {on}", version::SHORT, self.rounds);
        if let Some(peak) = self.peak {
            let rate = 1e-9 * peak.operations;
            text = format!("{text}, which multiply and add {rate:.0} times a ns");
        }
        text += "\n";
        text.extend(self.cases.iter().map(|case| case.text(self.peak)));
        for (name, ratios) in self.ratios().into_iter().filter(|(_, ratios)| ratios.len() > 1) {
            let (mean, count) = (mean(&ratios), ratios.len());
            let line = format!("\n{name}: speed {mean:.2} in the geometric mean of {count}\n");
            text.push_str(&line);
        }
        text
    }

    /// The speeds of those that are measured beside one device, over all cases, by name.
    fn ratios(&self) -> Vec<(&str, Vec<f64>)> {
        let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
        for case in &self.cases {
            for own in &case.contestants[1..] {
                let speed = own.speed(case.one());
                match all.iter_mut().find(|(name, _)| *name == own.name) {
                    Some((_, ratios)) => ratios.push(speed),
                    None => all.push((&own.name, vec![speed])),
                }
            }
        }
        all
    }

    pub(super) fn json(&self) -> Value {
        let means = self.ratios().into_iter();
        let means = means.map(|(name, ratios)| json!({ "name": name, "speed": mean(&ratios) }));
        json!({
            "version": version::SHORT,
            "rounds": self.rounds,
            "processors": self.cores,
            "peak_operations_per_second": self.peak.map(|peak| peak.operations),
            "cases": self.cases.iter().map(|case| case.json(self.peak)).collect::<Vec<_>>(),
            "geometric_means": means.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contestant(name: &str, rounds: &[f64]) -> Contestant {
        let mut own = Contestant::new(name.to_owned(), Some(1e9));
        for seconds in rounds {
            own.add(&Measured { seconds: vec![*seconds; 3], memory: Some(1 << 20) });
        }
        own
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        // The machine was twice as slow in the second round, for both.
        let (one, other) =
            (contestant("fanwise", &[1.0, 2.0, 1.0]), contestant("x", &[0.5, 1.0, 0.6]));
        assert!((other.speed(&one) - 2.0).abs() < 1e-12);
        assert!((one.spread() - 1.0).abs() < 1e-12);
        let peak = Peak { operations: 2e9, bytes: 0.0 };
        assert_eq!(one.share(Some(peak)), Some(0.5));
        assert_eq!(one.share(None), None);
        let case = |rows| Case {
            model: "zoo:mlp".to_owned(),
            rows,
            contestants: vec![contestant("fanwise", &[1.0]), contestant("x", &[f64::from(rows)])],
        };
        let bench =
            Bench { cores: vec![0, 1], peak: None, rounds: 1, cases: vec![case(1), case(4)] };
        assert!(bench.text().ends_with("\nx: speed 0.50 in the geometric mean of 2\n"));
    }
}
