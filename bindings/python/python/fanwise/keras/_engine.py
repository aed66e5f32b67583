"""The programs of a template, which share its weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _fanwise, _placement
from .._arrays import numpy, tensor
from . import _compile, _feed, _hosted, _trace
from ._compiled import Compiled, Sums
from ._weights import Program, Store, is_lazy


class Step(NamedTuple):
    """A step that was started, or several."""

    run: _fanwise.Run
    metrics: list[str]
    # The rows of each.
    rows: list[int]
    # Whether the outputs of several are joined.
    joined: bool
    # What metrics take that Keras itself counts; of several none.
    batch: _hosted.Batch | None = None


# What starts the batches of these rows, each of a number of rows.
Start = Callable[[np.ndarray, int], Any]


class Engine:
    """A template on its devices: programs are prepared when they run first."""

    def __init__(self, template: Any, options: dict[str, Any], *, reproducible: bool) -> None:
        self.template = template
        self.store = Store()
        self._options = options
        self._reproducible = reproducible
        self._code = not _trace.is_plain(template)
        # The variables of the template by the names of their parameters.
        self._model, self._variables = loaded(template)
        # The models with what is random in training, and with the costs that were traced; of code
        # that of training (`True`) is another one than that of the evaluation.
        self._trainees: dict[bool, _fanwise.Model] = {}
        # The shapes of the targets of outputs.
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._inference: Program | None = None
        self._others: dict[Any, Program] = {}
        self.compiled: Compiled | None = None
        self.sums: Sums | None = None
        self._step = 0
        # A learning rate of Keras, and its number.
        self._rate_of: tuple[Any, Any] = (None, None)
        self._trained: dict[str, Any] | None = None
        self.inputs = [name for name, _ in self._model.inputs]
        self.outputs = [name for name, _ in self._model.outputs]
        self.output_names = _output_names(template, self.outputs)
        self.store.share(self._variables)

    # Prediction.

    def predict(self, x: Any) -> list[np.ndarray]:
        """The outputs for a batch, in order."""
        return self.predicted(self.start_prediction(x))

    def start_prediction(self, x: Any) -> _fanwise.Run:
        """Starts the prediction for a batch."""
        program, given = self._to_predict(x)
        self.store.ready(program)
        return program.native.start(given)

    def predictions(self, x: Any) -> Start | None:
        """What starts predictions for batches of these rows; none where it has to be done for each
        batch alone."""
        program, given = self._to_predict(x)
        outputs = [dims for _, (_, dims) in program.native.outputs]
        if not _has_rows(program, given) or any(not dims or dims[0] for dims in outputs):
            return None

        def start(order: np.ndarray, batch: int) -> _fanwise.Run:
            self.store.ready(program)
            return program.native.start_batches(given, order, batch)

        return start

    def _to_predict(self, x: Any) -> tuple[Program, dict[str, Any]]:
        """The program for predictions, with its inputs."""
        if self._inference is None:
            _check_own(self.template, _PREDICTION)
            self._inference = self._prepared("inference", None)
        ports = self._inference.ports
        arrays = _feed.flat(x, self.inputs, "the data")
        given = {
            name: _feed.fitted(array, ports[name])
            for name, array in zip(self.inputs, arrays, strict=True)
            if name in ports
        }
        return self._inference, given

    def predicted(self, run: _fanwise.Run) -> list[np.ndarray]:
        """The outputs of a prediction that was started, in order."""
        found = run.result()
        return [numpy(found[name]) for name in self.outputs]

    # Training.

    def compile(self) -> None:
        """The template was compiled: what was prepared for its losses before is dropped."""
        self.compiled = self.sums = None
        for program in self._others.values():
            self.store.drop(program)
        self._others.clear()
        self._trainees.clear()
        for name in [name for name in self.store.variables if name.startswith("optimizer.")]:
            self.store.forget(name)

    def build(self, x: Any, y: Any, sample_weight: Any) -> None:
        """Lets Keras resolve what `compile` was given, by the shapes of a batch."""
        if self.compiled is None:
            self.template._symbolic_build(data_batch=(x, y, sample_weight))
            if self.template._compile_loss is None:
                raise ValueError("No loss to compute. Provide a `loss` argument in `compile()`.")
            if not self.template._compile_loss.built:
                raise ValueError("the loss needs targets: give `y`")
            _check_added(self.template)
            _check_own(self.template, _TRAINING)
            self.compiled = Compiled(self.template, self.output_names)
            self.sums = Sums(self.compiled)

    def step(self, x: Any, y: Any, sample_weight: Any, *, train: bool) -> dict[str, Any]:
        """A step of training, or an evaluation, on a batch; the numbers so far."""
        return self.finish_step(self.start_step(x, y, sample_weight, train=train))

    def start_step(self, x: Any, y: Any, sample_weight: Any, *, train: bool) -> Step:
        """Starts a step after those before it. The batch must not change before it is finished."""
        program, given, rows = self._to_step(x, y, sample_weight, train=train)
        if train:
            assert program.rate is not None
            given[program.rate] = self._rates(1)[0]
        self._changes(program, train=train)
        names = [name for name, _ in self._trainee(train).outputs]
        batch = _hosted.Batch(y, sample_weight, names)
        return Step(program.native.start(given), program.metrics, [rows], False, batch)

    def steps(self, batch: int, x: Any, y: Any, sample_weight: Any, *, train: bool) -> Start | None:
        """What starts steps on batches of these rows; none where it has to be done for each batch
        alone."""
        from keras import tree

        first = lambda array: array[:batch]
        self.build(*tree.map_structure(first, (x, y, sample_weight), none_is_leaf=False))
        assert self.compiled is not None
        if self.compiled.hosted.has_any:
            return None
        program, given, _ = self._to_step(x, y, sample_weight, train=train)
        if not _has_rows(program, given):
            return None

        def start(order: np.ndarray, batch: int) -> Step:
            rows = [min(batch, len(order) - at) for at in range(0, len(order), batch)]
            if train:
                assert program.rate is not None
                given[program.rate] = self._rates(len(rows))
            self._changes(program, train=train)
            run = program.native.start_batches(given, order, batch)
            return Step(run, program.metrics, rows, True)

        return start

    def _to_step(
        self, x: Any, y: Any, sample_weight: Any, *, train: bool
    ) -> tuple[Program, dict[str, Any], int]:
        """The program for steps on such data with its inputs but the learning rate, and the rows."""
        self.build(x, y, sample_weight)
        assert self.compiled is not None
        weights = self._weights(sample_weight)
        arrays = _feed.flat(x, self.inputs, "the data")
        kinds = {at: _kind(weight) for at, weight in weights.items()}
        if self.compiled.costs:
            self._shape(y)
        program = self._program(kinds, train=train)
        given = self._given(program, arrays, y, weights)
        return program, given, np.shape(arrays[0])[0]

    def _changes(self, program: Program, *, train: bool) -> None:
        """A program is about to run, and to change its variables if it trains."""
        self.store.ready(program)
        if train:
            self.store.trained(program, program.changes)

    def finish_step(self, step: Step) -> dict[str, Any]:
        """Waits for a step, or several; the numbers so far."""
        assert self.compiled is not None and self.sums is not None
        found = {name: numpy(value) for name, value in step.run.result().items()}
        if step.batch is not None:
            self.compiled.hosted.update(found, step.batch)
        if not step.joined:
            found = {name: value[None] for name, value in found.items()}
        self.sums.add(found, step.metrics, step.rows)
        return self.sums.logs()

    def finish(self) -> None:
        """Gives parameters the values of their moving averages, where the optimizer keeps some."""
        for program in self._others.values():
            averages = program.native.averages
            if averages and program is self.store.ahead:
                found = program.native.weights({average for _, average in averages})
                values = {name: found[average] for name, average in averages}
                program.native.set_weights(values)
                self.store.trained(program, set(values))

    def settle(self) -> None:
        """Brings the template up to date where it cannot do so when it is read."""
        if not is_lazy():
            self.store.pull()

    def refresh(self) -> None:
        """Layers may have been frozen since the last step."""
        self._trained = None

    def reset(self) -> None:
        """The numbers begin anew."""
        self.refresh()
        if self.compiled is not None:
            self.sums = Sums(self.compiled)
            self.compiled.hosted.reset()

    def _prepared(self, kind: str, spec: dict[str, Any] | None) -> Program:
        options, reproducible = self._options, self._reproducible
        if kind == "inference" and options["repair"] == "auto":
            options = {**options, "repair": "local"}
            reproducible = False
        model = self._model if kind == "inference" else self._trainee(kind == "training")
        program = Program(_fanwise.program(model, kind, spec, options, reproducible))
        self.store.add(program)
        return program

    def _trainee(self, training: bool) -> _fanwise.Model:
        """The model for programs of training, or of the evaluation."""
        assert self.compiled is not None
        key = training or not self._code
        if key not in self._trainees:
            costs = (self.compiled.costs, self._shapes)
            self._trainees[key], own = loaded(self.template, costs, training=key, random=True)
            new = {name: v for name, v in own.items() if name not in self._variables}
            self._variables |= new
            self.store.share(new)
            self._trained = None
        return self._trainees[key]

    def _program(self, kinds: dict[int, str], *, train: bool) -> Program:
        """The program for data with such weights, and for what is trainable now."""
        assert self.compiled is not None
        model = self._trainee(train)
        trainable = self._trainable()
        key = (train, tuple(sorted(kinds.items())), tuple(trainable))
        if key not in self._others:
            # Parameters beside the variables are constants.
            known = {name for name, _ in model.params}
            names = [name for name, _ in model.outputs]
            spec = {
                "losses": self.compiled.spec(names, kinds),
                "optimizer": _compile.optimizer(self.template.optimizer),
                "outputs": self.compiled.hosted.outputs(names),
                "frozen": known - set(trainable) - self._statistics(),
                "learned": set(trainable) & known,
                "seed": 0,
                "constraints": _compile.constraints(trainable),
                **_compile.penalties(trainable),
            }
            program = self._prepared("training" if train else "evaluation", spec)
            if train:
                of = {name: trainable[name] for name in program.native.trained}
                own = _compile.variables(self.template.optimizer, of)
                self.store.share({name: v for name, v in own.items() if name in program.params})
                program.changes -= set(trainable) - set(program.native.trained)
            self._others[key] = program
        return self._others[key]

    def _trainable(self) -> dict[str, Any]:
        """The variables that are trained now, by name; an epoch begins with those of its time."""
        if self._trained is None:
            trained = {id(variable) for variable in self.template.trainable_variables}
            self._trained = {name: v for name, v in self._variables.items() if id(v) in trained}
        return self._trained

    def _statistics(self) -> set[str]:
        """The running statistics that training moves: those of layers that are not frozen."""
        from keras.layers import BatchNormalization

        norms = [
            layer
            for layer in self.template._flatten_layers()
            if isinstance(layer, BatchNormalization) and layer.trainable
        ]
        moved = {id(v) for norm in norms for v in norm.non_trainable_variables}
        return {name for name, v in self._variables.items() if id(v) in moved}

    def _weights(self, sample_weight: Any) -> dict[int, np.ndarray]:
        """The weights of each output with a loss; one array counts for all."""
        from keras import tree

        assert self.compiled is not None
        if sample_weight is None:
            return {}
        losses = [loss.output for loss in self.compiled.losses]
        if not tree.is_nested(sample_weight):
            return {at: _feed.host(sample_weight) for at in losses}
        names = self.output_names
        if isinstance(sample_weight, dict):
            return {names.index(name): _feed.host(w) for name, w in sample_weight.items()}
        arrays = list(sample_weight)
        return {at: _feed.host(arrays[at]) for at in losses if arrays[at] is not None}

    def _given(
        self, program: Program, arrays: list[Any], y: Any, weights: dict[int, np.ndarray]
    ) -> dict[str, Any]:
        """The inputs of a program."""
        assert self.compiled is not None
        ports = program.ports
        inputs = dict(zip(self.inputs, arrays, strict=True))
        given = {n: _feed.fitted(a, ports[n]) for n, a in inputs.items() if n in ports}
        targets = self._targets(y)
        for at, cost in enumerate(self.compiled.costs):
            name = _trace.target_name(at)
            given[name] = _feed.fitted(targets[cost.output], ports[name])
        for loss, found in zip(self.compiled.losses, program.targets, strict=True):
            _, target, weight = found
            if loss.cost is None:
                given[target] = _feed.fitted(targets[loss.output], ports[target])
            else:
                # What is compared is a cost itself.
                given[target] = _feed.zeros(ports[target], np.shape(arrays[0])[0])
            if weight is not None:
                given[weight] = _feed.fitted(weights[loss.output], ports[weight])
        return given

    def _shape(self, y: Any) -> None:
        """Code is traced again for targets of other shapes behind the batch."""
        shapes = {at: np.shape(target) for at, target in self._targets(y).items()}
        rows = {at: shape[1:] for at, shape in shapes.items()}
        if rows != {at: shape[1:] for at, shape in self._shapes.items()}:
            if self._shapes:
                # The optimizer's variables stay; programs are made anew.
                for program in self._others.values():
                    self.store.drop(program)
                self._others.clear()
                self._trainees.clear()
            self._shapes = shapes

    def _targets(self, y: Any) -> dict[int, Any]:
        from keras import tree

        names = self.output_names
        if isinstance(y, dict):
            return {names.index(name): target for name, target in y.items()}
        arrays = tree.flatten(y)
        assert self.compiled is not None
        if len(arrays) == len(names):
            return dict(enumerate(arrays))
        losses = [loss.output for loss in self.compiled.losses]
        if len(arrays) != len(losses):
            raise ValueError(f"{len(arrays)} targets for {len(names)} outputs: {names}")
        return dict(zip(losses, arrays, strict=True))

    def _rates(self, count: int) -> np.ndarray:
        """The learning rates of the next steps; a schedule is asked with the number of each."""
        rate = self.template.optimizer._learning_rate
        if "optimizer.step" not in self.store.stale:
            self._step = int(_feed.host(self.template.optimizer._iterations.value))
        first, self._step = self._step, self._step + count
        if callable(rate):
            rates = [_feed.host(rate(step)) for step in range(first, self._step)]
            return np.array(rates, np.float64)
        # Arrays of JAX cannot be written; others are read each time, which takes a while.
        value = rate.value
        if value is not self._rate_of[0] or not type(value).__module__.startswith("jax"):
            self._rate_of = (value, np.float64(_feed.host(value)))
        return np.full(count, self._rate_of[1])


def _output_names(template: Any, outputs: list[str]) -> list[str]:
    """The names by which losses, targets and weights know outputs."""
    structure = getattr(template, "_outputs_struct", None)
    if isinstance(structure, dict):
        return sorted(structure)
    # A sequential model has no names of outputs.
    return list(getattr(template, "output_names", outputs))


def _has_rows(program: Program, given: dict[str, Any]) -> bool:
    """Whether the first axis of all these inputs is the batch, of any size."""
    dims = [program.ports[name][1][1] for name in given]
    return all(of_input and of_input[0] is None for of_input in dims)


def _kind(weight: np.ndarray) -> str:
    return "rows" if weight.ndim == 1 or weight.size == weight.shape[0] else "costs"


# The methods of a model that say what its training and its prediction do.
_TRAINING = ("fit", "train_step", "evaluate", "test_step", "compute_loss", "compute_metrics")
_PREDICTION = ("predict", "predict_step")


def _check_own(template: Any, names: tuple[str, ...]) -> None:
    """Fails where a class of the user has methods of its own, which would not be called."""
    for name in names:
        owner = next(kind for kind in type(template).__mro__ if name in kind.__dict__)
        if owner.__module__.split(".")[0] != "keras":
            way = "train the model itself, or leave the method to Keras"
            raise _compile.refused("the method", f"{owner.__name__}.{name}", way)


def _check_added(template: Any) -> None:
    """Fails where a layer adds a loss of its own."""
    for layer in template._flatten_layers():
        # The penalty of an activity is a part of the graph.
        if getattr(layer, "activity_regularizer", None) is None and getattr(layer, "_losses", None):
            raise _compile.refused("`add_loss` in the layer", layer.name)


def loaded(
    template: Any,
    costs: tuple[Any, Any] = ((), {}),
    *,
    training: bool = False,
    random: bool = False,
) -> tuple[_fanwise.Model, dict[str, Any]]:
    """The model that a live model of Keras is, and its variables by the names of parameters.

    `costs` are traced with it, of targets of these shapes. Code is called for `training` or not;
    layers keep what is `random` in them.
    """
    if not template.built:
        raise ValueError("build the model first: call it, or give it an `Input`")
    made, shapes = costs
    text, variables = _trace.architecture(template, training=training, costs=made, shapes=shapes)
    values = [tensor(_feed.host(variable.value)) for variable in variables]
    model, names = _fanwise.keras_model(text, values, random)
    return model, dict(zip(names, variables, strict=True))


def options(ids: list[int], target: str, **settings: Any) -> dict[str, Any]:
    """The settings of the devices."""
    return _placement.options(ids, target, **settings)
