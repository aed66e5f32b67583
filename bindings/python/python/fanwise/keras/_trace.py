"""Python code of models, losses and metrics as graphs of Keras' own layers and operations.

The code is called with symbolic tensors. What it does is then a model of stock layers, functions of
`keras.ops`, and two kinds of layers that stand for the rest: the variables that the code uses, and
the masks that it gives. The reader of Keras' configurations takes such a model like any other.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import RefusedError
from . import _steps


def refused(kind: str, name: str, error: BaseException) -> RefusedError:
    """The error for Python code that cannot be traced; `kind` is its class, or what it is."""
    hints = ["write it with `keras.ops` on the tensors that it is called with"]
    text = f"{kind} `{name}` cannot be traced: {type(error).__name__}: {error}"
    return RefusedError(f"{text}; {hints[0]}", code="E0611", operator=kind, layer=name, hints=hints)


def is_own(layer: Any) -> bool:
    """Whether a layer is one of Keras' own, which the reader knows; else it is Python code."""
    from keras import layers

    kind = type(layer)
    return kind.__module__.startswith("keras.src.") and kind is not layers.Lambda


def _is_model(layer: Any) -> bool:
    """Whether it is a model of layers that Keras put together."""
    from keras import Sequential
    from keras.src.models.functional import Functional

    return isinstance(layer, (Functional, Sequential))


def _is_cell(layer: Any) -> bool:
    """Whether it is a cell of Keras, which is called where a cell of the user's stands beside it."""
    from keras import layers

    cells = (layers.GRUCell, layers.LSTMCell, layers.SimpleRNNCell, layers.StackedRNNCells)
    return type(layer) in cells


def _parts(layer: Any) -> list[Any]:
    return [] if not hasattr(layer, "_flatten_layers") else list(layer._flatten_layers())


def is_plain(model: Any) -> bool:
    """Whether a model and all its parts are Keras' own."""
    return all(is_own(layer) or _is_plain_subclass(layer) for layer in _parts(model))


def _is_plain_subclass(layer: Any) -> bool:
    """Whether it is a subclass of the models of Keras that keeps their `call`."""
    from keras import Sequential
    from keras.src.models.functional import Functional

    known = (Functional.call, Sequential.call)
    return _is_model(layer) and type(layer).call in known


def _operations(outputs: list[Any]) -> list[Any]:
    """The layers and operations that tensors come from, each once."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    rest = list(outputs)
    while rest:
        history = rest.pop()._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        found.setdefault(id(history.operation), history.operation)
        if id(node) not in seen:
            seen.add(id(node))
            rest += node.input_tensors
    return list(reversed(found.values()))


def _fresh(name: str, taken: set[str]) -> str:
    """A name that is not taken yet, and is from now on."""
    count = 0
    fresh = name
    while fresh in taken:
        count += 1
        fresh = f"{name}_{count}"
    taken.add(fresh)
    return fresh


@functools.cache
def _classes() -> Any:
    """The layers that stand for variables and for masks."""
    import keras

    registered = keras.saving.register_keras_serializable("fanwise")

    @registered
    class Parameter(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, variable: Any, name: str) -> None:
            super().__init__(name=name, dtype=variable.dtype, trainable=bool(variable.trainable))
            self.variable = variable
            self.built = True

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(self.variable.shape, self.variable.dtype)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "shape": list(self.variable.shape)}

    @registered
    class Masked(keras.layers.Layer):  # type: ignore[misc]
        supports_masking = True

        def compute_output_spec(self, inputs: Any, mask: Any) -> Any:
            return keras.KerasTensor(inputs.shape, inputs.dtype)

        def call(self, inputs: Any, mask: Any) -> Any:
            return inputs

    @registered
    class Counted(keras.layers.Layer):  # type: ignore[misc]
        def compute_output_spec(self, inputs: Any, like: Any) -> Any:
            return keras.KerasTensor(inputs.shape, inputs.dtype)

        def call(self, inputs: Any, like: Any) -> Any:
            return inputs

    return Parameter, Masked, Counted


class Trace:
    """The tracing of one model: which layers it went through, and their names."""

    def __init__(self, inputs: list[Any], *, training: bool) -> None:
        # What the run is for, and what code says that it is for.
        self._mode = self.training = training
        self._first = inputs[0]
        self._variables: dict[int, Any] = {}
        # Of the layers that were called: their names here, and the calls that they had before.
        self._names: dict[int, tuple[Any, str, int, int]] = {}
        self._path: list[str] = []
        self._parameter, self._masked, _ = _classes()

    def model(self, model: Any, inputs: Any) -> Any:
        """The outputs of a model of layers."""
        if not hasattr(model, "_run_through_graph"):
            model = model._functional
        return model._run_through_graph(inputs, operation_fn=self._operation)

    def _operation(self, operation: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            # In a graph of layers what a run is for goes before what a call says.
            kwargs.pop("training", None)
            return self.layer(operation, *args, **kwargs)

        return call

    def layer(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """The outputs of a layer, of a model or of an operation."""
        parts = [part for part in _parts(layer) if not is_own(part)]
        if not _is_cell(layer) and (not parts or all(map(_is_plain_subclass, parts))):
            return self._stock(layer, args, kwargs)
        if _is_plain_subclass(layer):
            with self._inside(layer):
                return self.model(layer, args[0])
        # A wrapper of Keras is code like the layer in it.
        with self._inside(layer):
            return self._code(layer, args, kwargs)

    @contextlib.contextmanager
    def _inside(self, layer: Any) -> Iterator[None]:
        self._path.append(layer.name)
        try:
            yield
        finally:
            self._path.pop()

    def _stock(self, layer: Any, args: Any, kwargs: Any) -> Any:
        asked = kwargs.pop("training", None)
        if (self.training if asked is None else bool(asked)) != self._mode:
            # The reader gives all layers of a run the same mode.
            raise TypeError(f"it calls `{layer.name}` with another `training` than that of the run")
        if id(layer) not in self._names:
            before = (len(layer._inbound_nodes), len(layer._outbound_nodes))
            name = ".".join([*self._path, layer.name])
            self._names[id(layer)] = (layer, name, *before)
        return layer(*args, **kwargs)

    def _code(self, layer: Any, args: Any, kwargs: Any) -> Any:
        """Calls Python code with symbolic tensors."""
        from keras import tree
        from keras.src.backend import get_keras_mask

        if layer.activity_regularizer is not None:
            reason = "it has an activity regularizer: add the layer `ActivityRegularization`"
            raise refused(type(layer).__name__, layer.name, TypeError(reason))
        wants = inspect.signature(layer.call).parameters
        # Keras gives a mask by the name of its argument.
        named = {**dict(zip(wants, args, strict=False)), **kwargs}
        tensors = {name: x for name, x in named.items() if _has_tensors(x)}
        found_masks = {
            name: tree.map_structure(get_keras_mask, x)
            for name, x in tensors.items()
            if any(get_keras_mask(one) is not None for one in tree.flatten(x))
        }
        outer = self.training
        if kwargs.get("training") is not None:
            self.training = bool(kwargs["training"])
        if "training" in wants:
            kwargs["training"] = self.training
        for name, mask in found_masks.items():
            wanted = "mask" if len(tensors) == 1 else f"{name}_mask"
            if wanted in wants and kwargs.get(wanted) is None:
                kwargs[wanted] = mask
        mixed = layer.compute_dtype != layer.variable_dtype
        args, kwargs = tree.map_structure(lambda x: _cast(x, layer), (args, kwargs))
        scope = _scope()
        try:
            with self._replaced(layer, mixed), scope:
                found = layer.call(*args, **kwargs)
            _check(scope, layer, found)
        except RefusedError:
            raise
        except Exception as error:
            raise refused(type(layer).__name__, layer.name, error) from error
        finally:
            self.training = outer
        first = next(iter(named), None)
        previous = kwargs.get("mask")
        if previous is None:
            previous = found_masks.get(first)
        return self._with_mask(layer, named.get(first), found, previous)

    def _with_mask(self, layer: Any, inputs: Any, found: Any, previous: Any) -> Any:
        from keras import tree
        from keras.src.backend import get_keras_mask

        if not layer.supports_masking or inputs is None:
            return found
        try:
            new = layer.compute_mask(inputs, previous)
        except Exception as error:
            raise refused(type(layer).__name__, layer.name, error) from error
        new = tree.flatten(new) if new is not None else [None]
        outputs = tree.flatten(found)
        if len(new) != len(outputs):
            new = [None] * len(outputs)
        result = []
        for x, mask in zip(outputs, new, strict=True):
            is_known = mask is None or get_keras_mask(x) is not None
            result.append(x if is_known else self._masked()(x, mask=mask))
        return tree.pack_sequence_as(found, result)

    @contextlib.contextmanager
    def _replaced(self, layer: Any, mixed: bool) -> Iterator[None]:
        """Puts symbolic tensors in the place of the variables that a layer holds, and calls that
        are traced in the place of its layers."""
        import keras

        held, kept = vars(layer), dict(vars(layer))
        try:
            for key, value in kept.items():
                if key not in _TRACKED:
                    held[key] = self._symbol(value, layer, mixed)
            if type(layer) is keras.layers.RNN:
                held["call"] = _steps.call(layer, held["cell"], self._first)
            yield
        finally:
            held.clear()
            held.update(kept)

    def _symbol(self, value: Any, layer: Any, mixed: bool) -> Any:
        """What stands for a variable or a layer, or for a list or dict of them."""
        import keras

        if isinstance(value, keras.Variable):
            return self._parameter_of(value, layer, mixed)
        if isinstance(value, keras.layers.Layer):
            return self._call_of(value)
        if isinstance(value, (list, tuple)):
            new = [self._symbol(one, layer, mixed) for one in value]
            same = all(a is b for a, b in zip(new, value, strict=True))
            return value if same else new
        if isinstance(value, dict):
            fields = {key: self._symbol(one, layer, mixed) for key, one in value.items()}
            return value if all(fields[key] is value[key] for key in value) else fields
        return value

    def _call_of(self, layer: Any) -> Any:
        """A layer that is called by the code of another."""
        import keras

        trace = self

        class Called:
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return trace.layer(layer, *args, **kwargs)

            call = __call__

            def __getattr__(self, name: str) -> Any:
                value = getattr(layer, name)
                if isinstance(value, keras.Variable):
                    raise TypeError(f"it uses the variable `{value.path}` of another layer")
                return value

        return Called()

    def written(self, name: str, inputs: list[Any], outputs: list[Any]) -> tuple[str, list[Any]]:
        """The architecture of what was traced, and its variables; layers are as before."""
        import keras

        named = [(operation, operation.name) for operation in _operations(outputs)]
        taken: set[str] = set()
        try:
            for operation, own in named:
                wanted = self._names[id(operation)][1] if id(operation) in self._names else own
                operation.name = _fresh(wanted, taken)
            made = keras.Model(inputs, outputs, name=name)
            return made.to_json(), list(made.weights)
        finally:
            for operation, own in named:
                operation.name = own
            for layer, _, calls, users in self._names.values():
                del layer._inbound_nodes[calls:]
                del layer._outbound_nodes[users:]

    def _parameter_of(self, variable: Any, layer: Any, mixed: bool) -> Any:
        from keras import backend, ops
        from keras.src.backend.common.stateless_scope import StatelessScope

        if id(variable) not in self._variables:
            name = "/".join([*self._path, variable.name]).replace("/", ".")
            # Whatever code runs around this: the variable itself is not read for the graph.
            with StatelessScope():
                own = self._parameter(variable, name)
                self._variables[id(variable)] = own(self._first)
        value = self._variables[id(variable)]
        if mixed and backend.is_float_dtype(value.dtype):
            value = ops.cast(value, layer.compute_dtype)
        return value


def _has_tensors(x: Any) -> bool:
    from keras import KerasTensor, tree

    return any(isinstance(one, KerasTensor) for one in tree.flatten(x))


def _cast(x: Any, layer: Any) -> Any:
    """A tensor as Keras gives it to a layer: floats in the type that it computes in."""
    import keras
    from keras import backend

    own = isinstance(x, keras.KerasTensor) and backend.is_float_dtype(x.dtype) and layer.autocast
    to = layer.input_dtype
    if not own or x.dtype == to or not backend.is_float_dtype(to):
        return x
    y = keras.ops.cast(x, to)
    mask = keras.src.backend.get_keras_mask(x)
    if mask is not None:
        keras.src.backend.set_keras_mask(y, mask)
    return y


def _scope() -> Any:
    """A scope in which no variable is read: its value would be a constant of the graph."""
    from keras.src.backend.common.stateless_scope import StatelessScope

    class Scope(StatelessScope):  # type: ignore[misc]
        def get_current_value(self, variable: Any) -> Any:
            if "seed_generator" in variable.path:
                raise TypeError("it draws random numbers")
            raise TypeError(f"it reads the variable `{variable.path}` outside the graph")

    return Scope()


def _check(scope: Any, layer: Any, found: Any) -> None:
    """Fails where code has effects, or results that are not of the graph."""
    import keras
    from keras import tree

    if not all(isinstance(x, keras.KerasTensor) for x in tree.flatten(found)):
        raise TypeError("its result is no tensor of the graph")
    if scope.state_mapping:
        raise TypeError("it draws random numbers or changes variables")
    if getattr(scope, "losses", None) or getattr(layer, "_losses", None):
        raise TypeError("it calls `add_loss`")


def _inputs(model: Any) -> list[Any]:
    """Symbolic inputs like those of a model; of a subclass of the shapes that it was built with."""
    import keras

    if _is_plain_subclass(model):
        return [_like(x) for x in model.inputs]
    shapes = getattr(model, "_build_shapes_dict", None) or {}
    if len(shapes) != 1:
        raise ValueError(f"`{model.name}`: the shape of its input is not known; call it first")
    (shape,) = shapes.values()
    many = shape if isinstance(shape, list) else [shape]
    if not all(isinstance(one, tuple) for one in many):
        raise ValueError(f"`{model.name}` takes no tensor or list of tensors")
    names = ["input"] if len(many) == 1 else [f"input_{at}" for at in range(len(many))]
    return [
        keras.Input(batch_shape=(None, *one[1:]), name=name, dtype=model.input_dtype)
        for one, name in zip(many, names, strict=True)
    ]


def _like(x: Any) -> Any:
    import keras

    name = x._keras_history.operation.name
    return keras.Input(batch_shape=(None, *x.shape[1:]), dtype=x.dtype, name=name)


# The attributes in which Keras itself keeps the parts of a layer.
_TRACKED = (
    "_trainable_variables",
    "_non_trainable_variables",
    "_layers",
    "_metrics",
    "_seed_generators",
    "_tracker",
)


@dataclass
class Cost:
    """A function from a target and an output to the costs of rows: a loss or a metric."""

    kind: str
    name: str
    function: Callable[[Any, Any], Any]
    output: int
    dtype: str

    def values(self, target: Any, predicted: Any) -> Any:
        """The costs as symbolic tensors, with an axis of size 1 behind the others."""
        from keras import KerasTensor, ops

        scope = _scope()
        try:
            with scope:
                found = self.function(target, ops.cast(predicted, self.dtype))
            if not isinstance(found, KerasTensor):
                raise TypeError("its result is no tensor of the graph")
            if scope.state_mapping:
                raise TypeError("it draws random numbers or changes variables")
        except Exception as error:
            raise refused(self.kind, self.name, error) from error
        if not found.shape and self.kind == "the loss":
            # The weights of rows count as if each row had this cost, as in Keras.
            row = ops.ones_like(target)
            while len(row.shape) > 1:
                row = row[:, 0]
            return ops.expand_dims(ops.cast(row, found.dtype), -1) * found
        if not found.shape:
            return ops.reshape(found, (1, 1))
        _, _, counted = _classes()
        return counted()(ops.expand_dims(found, -1), like=predicted)


def target_name(at: int) -> str:
    """The name of the input with the target of a cost."""
    return f"cost_{at}.target"


def architecture(
    model: Any, *, training: bool, costs: Sequence[Cost] = (), shapes: Any = None
) -> tuple[str, list[Any]]:
    """The architecture of a model without Python code, as JSON, and its variables in order.

    Each of the costs is an output behind those of the model, and its target, of the shape in
    `shapes` of its output, an input behind those of the model.
    """
    import keras
    from keras import tree

    if all(map(is_own, _parts(model))) and not costs:
        return model.to_json(), list(model.weights)
    inputs = _inputs(model)
    trace = Trace(inputs, training=training)
    if _is_plain_subclass(model):
        found = trace.model(model, inputs)
    else:
        found = trace.layer(model, inputs[0] if len(inputs) == 1 else inputs)
    outputs = tree.flatten(found)
    targets, values = [], []
    for at, cost in enumerate(costs):
        batch = (None, *shapes[cost.output][1:])
        targets.append(keras.Input(batch_shape=batch, name=target_name(at), dtype=cost.dtype))
        values.append(cost.values(targets[-1], outputs[cost.output]))
    return trace.written(model.name, [*inputs, *targets], [*outputs, *values])
