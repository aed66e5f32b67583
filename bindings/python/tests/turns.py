"""The part of a matrix that has its turn: `FANWISE_TURN` is a number, or `all`, the default."""

import os
import unittest
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

TURN = os.environ.get("FANWISE_TURN", "all")


def in_turn(cases: Sequence[T], count: int, most: Sequence[T] | None = None) -> list[T]:
    """All cases, or `count` of those in `most`: in a row of turns each has its own."""
    if TURN == "all":
        return list(cases)
    of = list(cases if most is None else most)
    return [of[(int(TURN) * count + at) % len(of)] for at in range(min(count, len(of)))]


def a_third(
    _loader: unittest.TestLoader, tests: unittest.TestSuite, _pattern: Any
) -> unittest.TestSuite:
    """`load_tests` of a module of whose tests a third has its turn."""
    cases = list(single(tests))
    return unittest.TestSuite(in_turn(cases, -(-len(cases) // 3)))


def single(tests: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from single(test)
        else:
            yield test
