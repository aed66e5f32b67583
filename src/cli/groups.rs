//! The order of options in the help: those that are used most come first, without a heading; the
//! others stand in groups. Groups follow each other in the order in which a command declares its
//! options.

use clap::{Arg, Command};

/// The options that are used most, by command, in the order in which they are shown.
const COMMON: &[(&str, &[&str])] = &[
    ("compile", &["emit", "gpus", "batch", "no_loc"]),
    ("run", &["gpus", "batch", "inputs", "outputs", "seed", "repeat", "format"]),
    ("check", &["gpus", "batch", "inputs", "seed", "format"]),
    ("bench", &["batch", "gpus", "train", "optimizer", "against", "python", "rounds", "format"]),
    ("test", &["gpus", "tolerance", "format"]),
    (
        "fit",
        &[
            "data",
            "validation",
            "validation_split",
            "loss",
            "metrics",
            "optimizer",
            "learning_rate",
            "epochs",
            "batch",
            "gpus",
            "save",
            "format",
        ],
    ),
    ("evaluate", &["data", "loss", "metrics", "batch", "gpus", "classes_by", "format"]),
    ("predict", &["data", "outputs", "batch", "gpus", "classes_by", "format"]),
];

/// The group of a training step's options in `compile`.
const STEP: &str = "Training steps (--emit KIND:training)";

/// The groups that are of training.
const TRAINING: &[(&str, &[&str])] = &[
    (
        "Losses and metrics",
        &[
            "loss",
            "loss_weight",
            "metrics",
            "weighted_metrics",
            "class_axis",
            "class_weight",
            "l2",
            "l1",
        ],
    ),
    (
        "Optimizer",
        &[
            "optimizer",
            "learning_rate",
            "schedule",
            "freeze",
            "train",
            "constraint",
            "batch_norm_momentum",
            "recompute",
        ],
    ),
];

/// The other groups.
const GROUPS: &[(&str, &[&str])] = &[
    ("Epochs", &["steps_per_epoch", "drop_last", "shuffle", "reproducible"]),
    ("Early stopping", &["early_stopping", "patience", "min_delta"]),
    ("Checkpoints", &["checkpoint", "checkpoint_every", "keep", "monitor", "resume"]),
    ("Logs", &["log", "plot", "tensorboard"]),
    ("Images", &["normalize", "normalize_by", "augment", "layout"]),
    ("Replication", &["shards", "weights", "merge", "repair", "batch_norm"]),
    (
        "Execution",
        &[
            "target",
            "arch",
            "threads",
            "isa",
            "logical",
            "code",
            "cache_dir",
            "watchdog",
            "trace",
            "timeline",
            "profile",
        ],
    ),
    (
        "Model",
        &[
            "batch_axis",
            "dim",
            "free_batch",
            "assume",
            "params",
            "params_unchecked",
            "without_pass",
            "max_memory",
        ],
    ),
    ("Global options", &["color", "quiet", "verbose"]),
];

/// The command with the options of all its commands in groups.
pub(crate) fn grouped(command: Command) -> Command {
    command.mut_args(|arg| placed("", arg)).mut_subcommands(|below| {
        let name = below.get_name().to_owned();
        let below = below.mut_args(|arg| placed(&name, arg));
        if name != "fit" {
            return below;
        }
        below.mut_arg("model", |model| {
            model.required(false).required_unless_present("resume").help(
                "ONNX or Keras file, graph written by `compile --emit`, or `zoo:NAME` [default: \
                 that of `--resume`]",
            )
        })
    })
}

fn placed(command: &str, arg: Arg) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    if arg.is_positional() {
        return arg;
    }
    let common = COMMON.iter().find(|(name, _)| *name == command);
    if let Some(order) = common.and_then(|(_, ids)| place(ids, &id)) {
        return arg.display_order(order);
    }
    let step = TRAINING.iter().flat_map(|(_, ids)| ids.iter().copied()).collect::<Vec<_>>();
    if let Some(order) = place(&step, &id).filter(|_| command == "compile") {
        return arg.help_heading(STEP).display_order(order);
    }
    // The seed of random inputs is no part of training.
    if (command, id.as_str()) == ("fit", "seed") {
        return arg.help_heading("Epochs");
    }
    for (heading, ids) in TRAINING.iter().chain(GROUPS) {
        if let Some(order) = place(ids, &id) {
            return arg.help_heading(*heading).display_order(order);
        }
    }
    arg
}

fn place(ids: &[&str], id: &str) -> Option<usize> {
    ids.iter().position(|own| *own == id)
}
