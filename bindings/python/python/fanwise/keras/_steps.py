"""Recurrent layers of Keras whose cells are Python code: the loop over the steps as operations."""

import functools
from collections.abc import Callable
from typing import Any


def call(layer: Any, cell: Any, first: Any) -> Callable[..., Any]:
    """The `call` of a recurrent layer whose `cell` is called with symbolic tensors. Its initial
    state has the rows of the tensor `first`."""

    def called(
        sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = None
    ) -> Any:
        from keras import ops, tree

        if layer.stateful:
            raise TypeError("it keeps its state from batch to batch")
        if initial_state is None:
            own = layer.get_initial_state(batch_size=1)
            initial_state = tree.map_structure(lambda x: _for_rows(x, first), own)
        states = initial_state if tree.is_nested(initial_state) else [initial_state]
        states = tree.map_structure(lambda x: ops.cast(x, layer.cell.compute_dtype), list(states))
        last, outputs, states = _loop(layer, cell, sequences, states, mask)
        output = ops.cast(outputs if layer.return_sequences else last, layer.compute_dtype)
        states = tree.map_structure(lambda x: ops.cast(x, layer.compute_dtype), states)
        return (output, *states) if layer.return_state else output

    return called


def _for_rows(x: Any, first: Any) -> Any:
    """A state of one row for each row of a tensor."""
    from keras import ops

    zero = ops.zeros_like(ops.reshape(first, (-1, _size(first)))[:, :1])
    zero = ops.cast(ops.reshape(zero, (-1, *[1] * (len(x.shape) - 1))), x.dtype)
    return zero + x


def _size(x: Any) -> int:
    size = 1
    for extent in x.shape[1:]:
        if extent is None:
            raise TypeError("the sizes of its sequences are not known")
        size *= extent
    return size


def _loop(layer: Any, cell: Any, sequences: Any, states: Any, mask: Any) -> Any:
    """The last output, the outputs of the steps, and the last states."""
    from keras import ops, tree

    count = sequences.shape[1]
    if count is None:
        raise TypeError("the number of its steps is not known")
    outputs: list[Any] = []
    for step in reversed(range(count)) if layer.go_backwards else range(count):
        new, after = cell(sequences[:, step], states)
        after = after if tree.is_nested(after) else [after]
        if mask is None:
            states = after
        else:
            counts = mask[:, step]
            new = _kept(counts, new, _absent(layer, new, outputs, states))
            choose = functools.partial(_kept, counts)
            states = tree.map_structure(
                choose, after, tree.pack_sequence_as(after, tree.flatten(states))
            )
        outputs.append(new)
    shown = outputs
    if mask is not None and layer.zero_output_for_mask:
        order = reversed(range(count)) if layer.go_backwards else range(count)
        zero = ops.zeros_like(outputs[0])
        shown = [_kept(mask[:, step], x, zero) for step, x in zip(order, outputs, strict=True)]
    return shown[-1], ops.stack(shown, axis=1), states


def _absent(layer: Any, new: Any, outputs: list[Any], states: Any) -> Any:
    """What a step that does not count gives: an unrolled layer the output before, others the first
    state of the last cell."""
    from keras import ops, tree

    if layer.unroll:
        return outputs[-1] if outputs else ops.zeros_like(new)
    if not tree.is_nested(states[0]):
        return states[0]
    if not tree.is_nested(states[-1]):
        raise TypeError(
            "its last cell has no list of states: Keras takes the state of the first row"
        )
    return states[-1][0]


def _kept(counts: Any, new: Any, old: Any) -> Any:
    from keras import ops

    if len(new.shape) != 2:
        raise TypeError("its states have several axes, and its sequences a mask")
    return ops.where(counts[:, None], new, old)
