"""The part of a matrix that has its turn: `FANWISE_TURN` is a number, or `all`."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(cases: Sequence[T], count: int, most: Sequence[T] | None = None) -> list[T]:
    """All cases, or `count` of those in `most`: in a row of turns each has its own."""
    turn = os.environ.get("FANWISE_TURN", "0")
    if turn == "all":
        return list(cases)
    of = list(cases if most is None else most)
    return [of[(int(turn) * count + at) % len(of)] for at in range(min(count, len(of)))]
