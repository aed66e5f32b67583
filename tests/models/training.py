"""Steps of optimizers, losses and metrics as Keras computes them, for the tests of training.

    KERAS_BACKEND=tensorflow python tests/models/training.py > tests/models/training.json

Needs keras (the versions used are in the file written). Everything is computed in float64.
"""

import json

import keras
import numpy as np

keras.config.set_floatx("float64")

OPTIMIZERS = {
    "sgd": lambda o: o.SGD(0.01),
    "sgd:momentum=0.9": lambda o: o.SGD(0.01, momentum=0.9),
    "sgd:momentum=0.9,nesterov=true": lambda o: o.SGD(0.01, momentum=0.9, nesterov=True),
    "sgd:weight_decay=0.1": lambda o: o.SGD(0.01, weight_decay=0.1),
    "sgd:clipnorm=0.3": lambda o: o.SGD(0.01, clipnorm=0.3),
    "sgd:clipvalue=0.2": lambda o: o.SGD(0.01, clipvalue=0.2),
    "sgd:global_clipnorm=0.25": lambda o: o.SGD(0.01, global_clipnorm=0.25),
    "rmsprop": lambda o: o.RMSprop(0.001),
    "rmsprop:momentum=0.8": lambda o: o.RMSprop(0.001, momentum=0.8),
    "rmsprop:centered=true": lambda o: o.RMSprop(0.001, centered=True),
    "rmsprop:centered=true,momentum=0.5": lambda o: o.RMSprop(0.001, centered=True, momentum=0.5),
    "adam": lambda o: o.Adam(0.001),
    "adam:amsgrad=true": lambda o: o.Adam(0.001, amsgrad=True),
    "adamw": lambda o: o.AdamW(0.001),
    "adagrad": lambda o: o.Adagrad(0.001),
    "adadelta": lambda o: o.Adadelta(0.001),
    "adamax": lambda o: o.Adamax(0.001),
    "nadam": lambda o: o.Nadam(0.001),
    "lion": lambda o: o.Lion(0.001),
    "ftrl": lambda o: o.Ftrl(0.001),
    "ftrl:l1_regularization_strength=0.3,l2_regularization_strength=0.2,beta=0.1,learning_rate=0.1": lambda o: o.Ftrl(
        0.1, l1_regularization_strength=0.3, l2_regularization_strength=0.2, beta=0.1
    ),
    "ftrl:learning_rate_power=-0.4,l2_shrinkage_regularization_strength=0.1,initial_accumulator_value=0.2": lambda o: o.Ftrl(
        0.001, learning_rate_power=-0.4, l2_shrinkage_regularization_strength=0.1, initial_accumulator_value=0.2
    ),
    "lamb": lambda o: o.Lamb(0.001),
    "lamb:weight_decay=0.01,beta_1=0.8,epsilon=0.001": lambda o: o.Lamb(
        0.001, weight_decay=0.01, beta_1=0.8, epsilon=0.001
    ),
    "sgd:momentum=0.9,gradient_accumulation_steps=3": lambda o: o.SGD(
        0.01, momentum=0.9, gradient_accumulation_steps=3
    ),
    "adam:clipvalue=0.2,gradient_accumulation_steps=2": lambda o: o.Adam(
        0.001, clipvalue=0.2, gradient_accumulation_steps=2
    ),
    "nadam:gradient_accumulation_steps=4": lambda o: o.Nadam(0.001, gradient_accumulation_steps=4),
    "adamw:use_ema=true,ema_momentum=0.8": lambda o: o.AdamW(0.001, use_ema=True, ema_momentum=0.8),
    "sgd:use_ema=true,ema_momentum=0.8,ema_overwrite_frequency=3": lambda o: o.SGD(
        0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "rmsprop:use_ema=true,ema_momentum=0.8,ema_overwrite_frequency=2,gradient_accumulation_steps=2": lambda o: o.RMSprop(
        0.001, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    ),
}

CONSTRAINTS = {
    "non_neg": lambda c: c.NonNeg(),
    "max_norm:max_value=0.7,axis=0": lambda c: c.MaxNorm(0.7, axis=0),
    "max_norm:max_value=0.5,axis=0+1": lambda c: c.MaxNorm(0.5, axis=[0, 1]),
    "unit_norm:axis=-1": lambda c: c.UnitNorm(axis=-1),
    "min_max_norm:min_value=0.8,max_value=0.9,rate=0.25,axis=1": lambda c: c.MinMaxNorm(0.8, 0.9, rate=0.25, axis=1),
}

class Difference(keras.losses.Loss):
    """The loss for costs that are an output of the model; Keras has none."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(y_pred - y_true, axis=-1)


LOSSES = {
    "binary_crossentropy": lambda l: l.BinaryCrossentropy(),
    "binary_focal_crossentropy": lambda l: l.BinaryFocalCrossentropy(),
    "categorical_crossentropy": lambda l: l.CategoricalCrossentropy(),
    "categorical_focal_crossentropy": lambda l: l.CategoricalFocalCrossentropy(),
    "binary_focal_crossentropy:apply_class_balancing=true,alpha=0.3,gamma=1.5,smoothing=0.1": lambda l: (
        l.BinaryFocalCrossentropy(True, alpha=0.3, gamma=1.5, label_smoothing=0.1)
    ),
    "binary_focal_crossentropy:from_logits=true": lambda l: l.BinaryFocalCrossentropy(from_logits=True),
    "categorical_focal_crossentropy:alpha=0.5,gamma=3,smoothing=0.2": lambda l: l.CategoricalFocalCrossentropy(
        0.5, 3.0, label_smoothing=0.2
    ),
    "categorical_focal_crossentropy:from_logits=true": lambda l: l.CategoricalFocalCrossentropy(from_logits=True),
    "categorical_hinge": lambda l: l.CategoricalHinge(),
    "cosine_similarity": lambda l: l.CosineSimilarity(),
    "hinge": lambda l: l.Hinge(),
    "huber": lambda l: l.Huber(),
    "kl_divergence": lambda l: l.KLDivergence(),
    "log_cosh": lambda l: l.LogCosh(),
    "mean_absolute_error": lambda l: l.MeanAbsoluteError(),
    "mean_absolute_percentage_error": lambda l: l.MeanAbsolutePercentageError(),
    "mean_difference": lambda l: Difference(),
    "mean_squared_error": lambda l: l.MeanSquaredError(),
    "mean_squared_logarithmic_error": lambda l: l.MeanSquaredLogarithmicError(),
    "poisson": lambda l: l.Poisson(),
    "sparse_categorical_crossentropy": lambda l: l.SparseCategoricalCrossentropy(),
    "squared_hinge": lambda l: l.SquaredHinge(),
}

THRESHOLDS = {
    "auc:num_thresholds=2": lambda: keras.metrics.AUC(num_thresholds=2),
    "auc:num_thresholds=7": lambda: keras.metrics.AUC(num_thresholds=7),
    "precision:threshold=0.25": lambda: keras.metrics.Precision(thresholds=0.25),
    "recall:threshold=0.75": lambda: keras.metrics.Recall(thresholds=0.75),
    "binary_accuracy:threshold=0.25": lambda: keras.metrics.BinaryAccuracy(threshold=0.25),
}


def steps(make, gradients):
    variable = keras.Variable(1.0, dtype="float64")
    optimizer = make(keras.optimizers)
    values = []
    for g in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g, dtype="float64")], [variable])
        values.append(float(keras.ops.convert_to_numpy(variable)))
    if optimizer.use_ema:
        # What the variable is when training ends.
        optimizer.finalize_variable_values([variable])
        values.append(float(keras.ops.convert_to_numpy(variable)))
    return values


def constrained(make, rng):
    """A matrix, and what three steps of SGD make of it under a constraint."""
    variable = keras.Variable(rng.uniform(-1, 1, (3, 2)), dtype="float64")
    variable.constraint = make(keras.constraints)
    begin, gradients, values = keras.ops.convert_to_numpy(variable), rng.uniform(-1, 1, (3, 3, 2)), []
    optimizer = keras.optimizers.SGD(0.5)
    for g in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g)], [variable])
        values.append(keras.ops.convert_to_numpy(variable).ravel().tolist())
    return {"begin": begin.ravel().tolist(), "gradients": [g.ravel().tolist() for g in gradients], "steps": values}


def confusion(metrics, y, p, weights):
    """What metrics of two batches say, without and with weights of rows."""
    found = []
    for w in (None, weights):
        metric = metrics()
        for rows in (slice(0, 3), slice(3, 12)):
            metric.update_state(y[rows], p[rows], sample_weight=None if w is None else w[rows])
        found.append(float(metric.result()))
    return found


def masked(rng):
    """Losses and metrics of sequences of which a mask leaves some places."""
    p = rng.uniform(0.05, 1.0, (5, 4, 3))
    p = p / p.sum(axis=2, keepdims=True)
    classes = rng.integers(0, 3, (5, 4))
    mask = rng.uniform(0, 1, (5, 4)) < 0.6
    mask[2] = False
    weights = rng.uniform(0.1, 2.0, 5)
    output = keras.ops.convert_to_tensor(p)
    output._keras_mask = keras.ops.convert_to_tensor(mask)
    loss = keras.losses.SparseCategoricalCrossentropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(classes, output)
    weighted = keras.metrics.SparseCategoricalAccuracy()
    weighted.update_state(classes, output, sample_weight=weights[:, None])
    places = rng.uniform(0.0, 2.0, (5, 4))
    plain = keras.ops.convert_to_tensor(p)
    placed = {}
    for name, out in (("", output), ("unmasked_", plain)):
        metric = keras.metrics.SparseCategoricalAccuracy()
        metric.update_state(classes, out, sample_weight=places)
        placed[f"{name}loss"] = float(loss(classes, out, sample_weight=places))
        placed[f"{name}accuracy"] = float(metric.result())
    return {
        "places": {"weights": places.ravel().tolist(), **placed},
        "outputs": p.ravel().tolist(),
        "classes": classes.ravel().tolist(),
        "mask": mask.ravel().astype("float64").tolist(),
        "weights": weights.tolist(),
        "loss": float(loss(classes, output)),
        "weighted_loss": float(loss(classes, output, sample_weight=weights[:, None])),
        "accuracy": float(accuracy.result()),
        "weighted_accuracy": float(weighted.result()),
    }


def plateau(losses):
    """The learning rates of epochs with these losses, and that after them."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    callback = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.5, patience=2, min_delta=0.05, cooldown=1, min_lr=0.1
    )
    callback.set_model(model)
    callback.on_train_begin()
    rates = [0.5]
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": loss})
        rates.append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))
    return rates


def main():
    rng = np.random.default_rng(7)
    gradients = [float(g) for g in rng.uniform(-1, 1, 10)]
    p = rng.uniform(0.05, 2.0, (5, 4))
    p = p / p.sum(axis=1, keepdims=True)
    classes = rng.integers(0, 4, 5)
    y = np.eye(4)[classes]
    weights = rng.uniform(0.1, 2.0, 5)
    losses = {}
    for name, make in LOSSES.items():
        target = classes if name.startswith("sparse") else y
        plain = float(make(keras.losses)(target, p))
        weighted = float(make(keras.losses)(target, p, sample_weight=weights))
        losses[name] = [plain, weighted]
    metrics = {
        "categorical_accuracy": keras.metrics.CategoricalAccuracy(),
        "binary_accuracy": keras.metrics.BinaryAccuracy(),
        "top_2_accuracy": keras.metrics.TopKCategoricalAccuracy(k=2),
        "top_3_accuracy": keras.metrics.TopKCategoricalAccuracy(k=3),
    }
    found = {}
    for name, metric in metrics.items():
        # The places of the largest numbers are found in float32 only.
        metric.update_state(y.astype("float32"), p.astype("float32"))
        found[name] = float(metric.result())
    q = rng.uniform(0, 1, (12, 2))
    # Outputs on a threshold, and at the ends.
    q[0], q[4], q[7] = (0.5, 1.0), (0.0, 0.25), (100 / 199, 0.5)
    yes = (rng.uniform(0, 1, (12, 2)) < 0.3 + 0.4 * q).astype("float64")
    own = rng.uniform(0.1, 2.0, 12)
    losses_of_epochs = [2.0, 1.0, 0.97, 1.0, 1.0, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.1]
    out = {
        "keras": keras.__version__,
        "backend": keras.config.backend(),
        "gradients": gradients,
        "optimizers": {name: steps(make, gradients) for name, make in OPTIMIZERS.items()},
        "outputs": p.tolist(),
        "classes": classes.tolist(),
        "weights": weights.tolist(),
        "losses": losses,
        "metrics": found,
        "confusion": {
            "outputs": q.tolist(),
            "targets": yes.tolist(),
            "weights": own.tolist(),
            "auc": confusion(keras.metrics.AUC, yes, q, own),
            "precision": confusion(keras.metrics.Precision, yes, q, own),
            "recall": confusion(keras.metrics.Recall, yes, q, own),
            "binary_accuracy": confusion(keras.metrics.BinaryAccuracy, yes, q, own),
            "mean_squared_error": confusion(keras.metrics.MeanSquaredError, yes, q, own),
            **{name: confusion(make, yes, q, own) for name, make in THRESHOLDS.items()},
        },
        "masked": masked(rng),
        "constraints": {name: constrained(make, rng) for name, make in CONSTRAINTS.items()},
        "plateau": {"losses": losses_of_epochs, "rates": plateau(losses_of_epochs)},
    }
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
