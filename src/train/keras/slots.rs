//! The variables of Keras' optimizers, in Keras' order, and those of a training that they are.

use crate::format::keras::Slots;
use crate::pass::{Optimizer, Rule, STEP};

/// A variable of an optimizer of Keras.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The learning rate.
    Rate,
    /// The variable of a training with this name.
    Variable(String),
    /// One that a training has no counterpart of.
    Other,
}

/// The variables of an optimizer of Keras 3 that trains these variables. With a schedule the
/// learning rate is none of them.
pub(super) fn order(optimizer: &Optimizer, trained: &[&str], has_decay: bool) -> Vec<Entry> {
    let mut all = vec![Entry::Variable(STEP.to_owned())];
    if !has_decay {
        all.push(Entry::Rate);
    }
    let mut add = |slots: &[&str]| {
        for name in trained {
            let own = slots.iter().map(|slot| Entry::Variable(format!("optimizer.{slot}.{name}")));
            all.extend(own);
        }
    };
    if optimizer.ema {
        add(&["average"]);
    }
    if optimizer.gradient_accumulation_steps > 1 {
        add(&["gradient_accumulator"]);
    }
    let slots: Vec<&str> = optimizer.slots().into_iter().map(|(slot, _)| slot).collect();
    let together = match optimizer.rule {
        Rule::RmsProp { .. } => 1,
        // The largest mean squares stand behind.
        _ => 2,
    };
    slots.chunks(together).for_each(&mut add);
    if let Rule::Nadam { .. } = optimizer.rule {
        all.push(Entry::Variable("optimizer.product".to_owned()));
    }
    all
}

/// What the slots of optimizers of Keras before 3 are called, by the names here.
const OLD: [(&str, &[&str]); 9] = [
    ("momentum", &["m", "momentum"]),
    ("velocity", &["v", "rms", "velocity"]),
    ("velocity_hat", &["vhat"]),
    ("average_gradient", &["mg", "average_gradient"]),
    ("accumulated_grad", &["accum_grad", "accumulated_grad"]),
    ("accumulated_delta", &["accum_var", "accumulated_delta_var"]),
    ("m", &["m"]),
    ("u", &["u", "v"]),
    ("average", &["average"]),
];

/// The slots of an optimizer, with the averages that it may keep.
fn kept(optimizer: &Optimizer) -> Vec<&'static str> {
    let average = optimizer.ema.then_some("average");
    optimizer.slots().into_iter().map(|(slot, _)| slot).chain(average).collect()
}

/// The name of a slot in a file of before Keras 3, from the name of a variable: it stands last, or
/// in front of the names of layers.
fn old(optimizer: &Optimizer, name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(":0").unwrap_or(name);
    let parts: Vec<&str> = name.split('/').collect();
    let own = kept(optimizer);
    let of = |part: &str| {
        let slot = |own: &'static str| {
            let known = OLD.iter().find(|(name, _)| *name == own);
            let is_one = known.map_or(own == part, |(_, names)| names.contains(&part));
            is_one.then_some(own)
        };
        own.iter().find_map(|own| slot(own))
    };
    parts.last().and_then(|part| of(part)).or_else(|| of(parts.get(1)?))
}

/// What the variables of a file are; `None` if they are not those of this optimizer.
pub(super) fn assigned(
    slots: &Slots,
    optimizer: &Optimizer,
    trained: &[&str],
    has_decay: bool,
) -> Option<Vec<Entry>> {
    let Some(names) = slots.names.as_ref().filter(|names| !names.is_empty()) else {
        let all = order(optimizer, trained, has_decay);
        return ordered(slots, all).or_else(|| without_rate(slots, optimizer, trained));
    };
    // So Keras with Theano names variables that have no name.
    if names.iter().all(|name| name.starts_with("param_")) {
        return by_kind(slots, optimizer, trained);
    }
    if !names.iter().all(|name| name.ends_with(":0")) {
        return ordered(slots, order(optimizer, trained, has_decay));
    }
    named(names, optimizer, trained).or_else(|| by_kind(slots, optimizer, trained))
}

/// Variables in this order, if they are as many.
fn ordered(slots: &Slots, all: Vec<Entry>) -> Option<Vec<Entry>> {
    (all.len() == slots.tensors.len()).then_some(all)
}

/// The variables in an archive of tf.keras: the learning rate is none of them, and SGD has momenta
/// also where it does not use them.
fn without_rate(slots: &Slots, optimizer: &Optimizer, trained: &[&str]) -> Option<Vec<Entry>> {
    let mut all = order(optimizer, trained, true);
    if optimizer.slots().is_empty() {
        all.extend(trained.iter().map(|_| Entry::Other));
    }
    ordered(slots, all)
}

/// Variables whose names say nothing, as Keras 1 and Keras 2 have them: the steps, if they are
/// kept, and then each kind of slot for all variables. The last kinds may be unused ones.
fn by_kind(slots: &Slots, optimizer: &Optimizer, trained: &[&str]) -> Option<Vec<Entry>> {
    let has_steps = slots.tensors.first()?.dims().is_empty();
    let step = has_steps.then(|| Entry::Variable(STEP.to_owned()));
    let mut all: Vec<Entry> = step.into_iter().collect();
    for (slot, _) in optimizer.slots() {
        all.extend(trained.iter().map(|of| Entry::Variable(format!("optimizer.{slot}.{of}"))));
    }
    let rest = slots.tensors.len().checked_sub(all.len())?;
    let unused = std::iter::repeat_n(Entry::Other, rest);
    (rest % trained.len().max(1) == 0).then(|| all.into_iter().chain(unused).collect())
}

/// Variables by their names in tf.keras.
fn named(names: &[String], optimizer: &Optimizer, trained: &[&str]) -> Option<Vec<Entry>> {
    let mut counts = std::collections::BTreeMap::new();
    let mut all = Vec::new();
    for name in names {
        let name = name.trim_end_matches(":0");
        let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
        all.push(match last {
            "iter" | "iteration" => Entry::Variable(STEP.to_owned()),
            "learning_rate" => Entry::Rate,
            _ => match old(optimizer, name) {
                Some(slot) => {
                    let count = counts.entry(slot).or_insert(0usize);
                    let variable = trained.get(*count)?;
                    *count += 1;
                    Entry::Variable(format!("optimizer.{slot}.{variable}"))
                }
                None => Entry::Other,
            },
        });
    }
    let is_whole = |slot: &str| counts.get(slot) == Some(&trained.len());
    kept(optimizer).iter().all(|slot| is_whole(slot)).then_some(all)
}
