"""Losses, metrics and optimizers of Keras as fanwise writes them; what it lacks is refused by name."""

from typing import Any

from .._errors import RefusedError
from ._trace import Cost

# Names of settings that differ, by Keras' name.
_SETTINGS = {"label_smoothing": "smoothing"}

# The settings of metrics that are those of Keras' default, which fanwise has.
_USUAL: dict[str, dict[str, Any]] = {
    "AUC": {
        "curve": "ROC",
        "summation_method": "interpolation",
        "multi_label": False,
        "num_labels": None,
        "label_weights": None,
        "from_logits": False,
    },
    "Precision": {"top_k": None, "class_id": None},
    "Recall": {"top_k": None, "class_id": None},
}

# The attributes of optimizers that hold variables, by fanwise's name of these.
_SLOTS: dict[str, dict[str, str]] = {
    "SGD": {"momentum": "momentums"},
    "RMSprop": {
        "velocity": "_velocities",
        "momentum": "_momentums",
        "average_gradient": "_average_gradients",
    },
    "Adam": {
        "momentum": "_momentums",
        "velocity": "_velocities",
        "velocity_hat": "_velocity_hats",
    },
    "Adagrad": {"accumulator": "_accumulators"},
    "Adadelta": {
        "accumulated_grad": "_accumulated_grads",
        "accumulated_delta": "_accumulated_delta_vars",
    },
    "Adamax": {"m": "_m", "u": "_u"},
    "Nadam": {"momentum": "_momentums", "velocity": "_velocities"},
    "Lion": {"momentum": "_momentums"},
    "Ftrl": {"accumulator": "_accumulators", "linear": "_linears"},
}
_SLOTS["AdamW"] = _SLOTS["Adam"]
_SLOTS["Lamb"] = _SLOTS["Nadam"]

# The numbers and truth values of optimizers beside those that all have.
_RULES = (
    "momentum",
    "nesterov",
    "rho",
    "beta_1",
    "beta_2",
    "epsilon",
    "centered",
    "amsgrad",
    "initial_accumulator_value",
    "learning_rate_power",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "beta",
)

# The losses of Keras that have no counterpart: they are traced like those of a user.
_LACKING = ("categorical_generalized_cross_entropy", "circle", "ctc", "dice", "tversky")

# Functions of `keras.metrics` without a counterpart: Keras itself counts them.
_HOSTED = (
    "accuracy",
    "concordance_correlation",
    "cosine_similarity",
    "pearson_correlation",
)

# The loss whose costs are the differences of an output and its target: of an output that is a cost
# itself, with the target 0, they are that output.
COSTS = "mean_difference"

# The settings of constraints.
_CONSTRAINTS = {
    "MaxNorm": ("max_value", "axis"),
    "MinMaxNorm": ("min_value", "max_value", "rate", "axis"),
    "NonNeg": (),
    "UnitNorm": ("axis",),
}
_COMMON = (
    "weight_decay",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation_steps",
)


def refused(what: str, name: str, way: str = "") -> RefusedError:
    """The error for a part of a training that fanwise does not have."""
    text = f"{what} `{name}` is not supported"
    hints = [way] if way else []
    return RefusedError("; ".join([text, *hints]), code="E0611", operator=name, hints=hints)


def _text(name: str, settings: dict[str, Any]) -> str:
    def one(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return repr(value.item() if hasattr(value, "item") else value)

    return ":".join([name, ",".join(f"{key}={one(value)}" for key, value in settings.items())])


def _is_known(fn: Any) -> bool:
    """Whether a function is one of `keras.losses` that has a counterpart."""
    module = getattr(fn, "__module__", None) or ""
    return module.startswith("keras.src.") and fn.__name__ not in _LACKING


def _function(fn: Any, kwargs: dict[str, Any]) -> tuple[str, int | None]:
    """A function of `keras.losses`, with the axis of its classes."""
    settings = {key: value for key, value in kwargs.items() if value is not None}
    axis = settings.pop("axis", None)
    named = {_SETTINGS.get(key, key): value for key, value in settings.items()}
    return _text(fn.__name__, named), axis


def loss(found: Any, output: int) -> tuple[str, int | None] | Cost:
    """The text of a loss object, and the axis of its classes where one is given; or the code that
    is to be traced."""
    if getattr(found, "reduction", None) not in ("sum_over_batch_size", "mean"):
        way = "use the reduction `sum_over_batch_size`"
        raise refused("the reduction of the loss", f"{found.name}: {found.reduction}", way)
    fn = getattr(found, "fn", None)
    if _is_known(fn) and type(found).__module__.startswith("keras.src."):
        return _function(fn, found._fn_kwargs)
    name = getattr(fn, "__name__", found.name)
    return Cost("the loss", name, found.call, output, found.dtype)


def metric(found: Any, output: int) -> str | Cost | None:
    """The text of a metric object; or the code that is to be traced; or nothing, if Keras itself
    has to count it."""
    from keras import metrics

    kind = type(found).__name__
    if type(found) in (metrics.AUC, metrics.Precision, metrics.Recall):
        config = found.get_config()
        if any(config.get(key, usual) != usual for key, usual in _USUAL[kind].items()):
            return None
        if type(found) is metrics.AUC:
            even = found._thresholds_distributed_evenly
            return _text("auc", {"num_thresholds": len(found._thresholds)}) if even else None
        (first, *more) = found.thresholds
        return None if more else _text(kind.lower(), {"threshold": float(first)})
    fn = found._fn if _is_mean(found) else None
    name = getattr(fn, "__name__", found.name)
    if fn is None or name in _HOSTED:
        return None
    kwargs = dict(found._fn_kwargs)
    # Rows of an ignored class count in Keras' mean; the other setting is another reading of `y`.
    if kwargs.get("ignore_class") is not None or kwargs.get("from_sorted_ids"):
        return None
    if not _is_known(fn):
        return Cost("the metric", name, lambda y, p: fn(y, p, **kwargs), output, found.dtype)
    if "top_k" in name:
        return _text("top_k_accuracy", {"k": kwargs.get("k", 5)})
    text, axis = _function(fn, kwargs)
    return text if axis in (None, -1) else None


def _is_mean(found: Any) -> bool:
    """Whether a metric is the mean of a function over rows, and counts as Keras does."""
    from keras.metrics import MeanMetricWrapper

    return isinstance(found, MeanMetricWrapper) and all(
        getattr(type(found), name) is getattr(MeanMetricWrapper, name)
        for name in ("update_state", "result", "reset_state")
    )


def optimizer(found: Any) -> str:
    """The text of an optimizer."""
    kind = type(found).__name__
    if kind not in _SLOTS or not type(found).__module__.startswith("keras.src."):
        raise refused("the optimizer", kind, f"use one of {', '.join(sorted(_SLOTS))}")
    config = found.get_config()
    if config.get("loss_scale_factor"):
        raise refused("the setting loss_scale_factor of the optimizer", kind)
    if getattr(found, "_exclude_from_weight_decay", None):
        raise refused("`exclude_from_weight_decay` of the optimizer", kind)
    settings = {key: config[key] for key in _RULES if config.get(key) is not None}
    settings |= {key: config[key] for key in _COMMON if config.get(key)}
    if kind == "AdamW" and not config.get("weight_decay"):
        kind = "Adam"
    if config.get("use_ema"):
        settings |= {"use_ema": True, "ema_momentum": config["ema_momentum"]}
        every = config.get("ema_overwrite_frequency")
        settings |= {"ema_overwrite_frequency": every} if every else {}
    return _text(kind, settings)


def variables(found: Any, trained: dict[str, Any]) -> dict[str, Any]:
    """The variables of an optimizer by the names that programs have for them.

    `trained` are the variables of the model that it trains, by their names.
    """
    named = {"optimizer.step": found._iterations}
    lists = dict(_SLOTS[type(found).__name__])
    lists["gradient_accumulator"] = "_accumulated_gradients"
    lists["average"] = "_model_variables_moving_average"
    for slot, attribute in lists.items():
        held = getattr(found, attribute, None)
        if held:
            for name, variable in trained.items():
                named[f"optimizer.{slot}.{name}"] = held[found._get_variable_index(variable)]
    if hasattr(found, "_u_product"):
        named["optimizer.product"] = found._u_product
    return named


def penalties(trained: dict[str, Any]) -> dict[str, list[tuple[str, float]]]:
    """The factors of the regularizers of variables."""
    from keras import regularizers

    known = (regularizers.L1, regularizers.L2, regularizers.L1L2)
    found: dict[str, list[tuple[str, float]]] = {"l1": [], "l2": []}
    for name, variable in trained.items():
        own = getattr(variable, "regularizer", None)
        if own is not None and type(own) not in known:
            raise refused("the regularizer", f"{type(own).__name__} of {name}", "use L1 or L2")
        for kind, factors in found.items():
            factor = float(getattr(own, kind, 0.0))
            factors += [(name, factor)] if factor else []
    return found


def constraints(trained: dict[str, Any]) -> list[tuple[str, str]]:
    """The constraints of variables."""
    found = []
    for name, variable in trained.items():
        own = getattr(variable, "constraint", None)
        if own is None:
            continue
        kind = type(own).__name__
        if kind not in _CONSTRAINTS or not type(own).__module__.startswith("keras.src."):
            raise refused("the constraint", f"{kind} of {name}", "use one of `keras.constraints`")
        settings = {key: getattr(own, key) for key in _CONSTRAINTS[kind]}
        axis = settings.get("axis", 0)
        if isinstance(axis, (list, tuple)):
            settings["axis"] = "+".join(map(str, axis))
        text = ",".join(f"{key}={value}" for key, value in settings.items())
        found.append((name, f"{kind}:{text}"))
    return found
