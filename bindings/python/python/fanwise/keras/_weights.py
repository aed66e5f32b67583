"""Variables of Keras and parameters of programs that share their values.

Values are copied when somebody reads them, and only those that changed: a variable of Keras that a
program trained is brought up to date when it is read next, and programs when they run next. On
TensorFlow, whose graphs read variables by themselves, they are brought up to date after each epoch,
and after each batch where there are callbacks.
"""

from typing import Any

import numpy as np

from .. import _fanwise
from .._arrays import numpy, tensor

# The attribute of a variable that holds its link.
_LINK = "_fanwise_link"


class _Link:
    """Who shares a variable: stores, each with its name of it."""

    def __init__(self) -> None:
        self.names: list[tuple[Store, str]] = []

    def read(self) -> None:
        for store, name in self.names:
            if name in store.stale:
                store.pull()

    def written(self, by: "Store | None" = None) -> None:
        for store, name in self.names:
            if store is not by:
                store.stale.discard(name)
                store.changed.add(name)

    def __deepcopy__(self, memo: Any) -> "_Link":
        # A copy of a variable is one of its own.
        return _Link()

    def __reduce__(self) -> Any:
        return _Link, ()


# The classes of variables that tell their link who reads and writes them, by the usual class.
_KINDS: dict[type, Any] = {}


def _shared(kind: type) -> Any:
    """The class of variables of this kind that tell their link who reads and writes them."""
    if kind in _KINDS:
        return _KINDS[kind]

    def read(self: Any) -> Any:
        self.__dict__[_LINK].read()
        return self.__dict__["_value"]

    def write(self: Any, value: Any) -> None:
        self.__dict__["_value"] = value
        self.__dict__[_LINK].written()

    _KINDS[kind] = type(kind.__name__, (kind,), {"_value": property(read, write)})
    return _KINDS[kind]


def is_lazy() -> bool:
    """Whether variables are read by Python: a graph of TensorFlow reads them by itself."""
    from keras import backend

    return bool(backend.backend() != "tensorflow")


def _link(variable: Any) -> _Link:
    link: _Link | None = variable.__dict__.get(_LINK)
    if link is None:
        link = variable.__dict__[_LINK] = _Link()
        if is_lazy():
            variable.__class__ = _shared(type(variable))
    return link


def _stamp(variable: Any) -> Any:
    """What tells that a variable was written in place; `None` where nothing is."""
    value = variable.__dict__["_value"]
    if hasattr(value, "_version"):
        return value._version
    if type(value).__module__.startswith("tensorflow"):
        return value.numpy().tobytes()
    return None


class Program:
    """A program, and the names of the parameters that others have newer values of."""

    def __init__(self, native: _fanwise.Program) -> None:
        self.native = native
        self.ports = {port[0]: port for port in native.inputs}
        self.targets = native.targets
        self.metrics = native.metrics
        self.rate = native.learning_rate
        self.params = {name: dtype for name, (dtype, _) in native.params}
        self.behind = set(self.params)
        # What a step of training changes.
        self.changes = set(self.params)


class Store:
    """Variables of Keras by the names that programs have for them."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self.programs: list[Program] = []
        # Variables that were written since programs got them.
        self.changed: set[str] = set()
        # Variables of which the program `ahead` has newer values.
        self.stale: set[str] = set()
        self.ahead: Program | None = None
        # Other stores that have newer values of variables that they share.
        self.others: list[Store] = []
        self.copied = 0
        # Variables that may be written in place, with what tells it.
        self._stamps: dict[str, Any] = {}

    def share(self, variables: dict[str, Any]) -> None:
        """Adds variables; those of these names before are theirs alone again."""
        for name, variable in variables.items():
            if self.variables.get(name) is variable:
                continue
            self.forget(name)
            self.variables[name] = variable
            link = _link(variable)
            link.read()
            link.names.append((self, name))
            self.changed.add(name)
            stamp = _stamp(variable)
            if stamp is not None:
                self._stamps[name] = stamp

    def forget(self, name: str) -> None:
        """Shares a variable no longer."""
        variable = self.variables.pop(name, None)
        if variable is not None:
            link = _link(variable)
            link.read()
            link.names = [(store, own) for store, own in link.names if store is not self]
            self.changed.discard(name)
            self._stamps.pop(name, None)

    def add(self, program: Program) -> None:
        """A program that gets the values."""
        self.programs.append(program)

    def drop(self, program: Program | None) -> None:
        """A program that is not used any more."""
        if program is None:
            return
        if self.ahead is program:
            self.pull()
            self.ahead = None
        self.programs = [other for other in self.programs if other is not program]

    def ready(self, program: Program) -> None:
        """Brings the parameters of a program up to date."""
        self._notice()
        all_behind, program.behind = program.behind, set()
        try:
            self._bring(program, all_behind & program.params.keys())
        except BaseException:
            # Ctrl-C ends a wait: the program still lacks them.
            program.behind |= all_behind
            raise

    def _bring(self, program: Program, behind: set[str]) -> None:
        given: dict[str, Any] = {}
        newer = behind & self.stale
        if newer and self.ahead is not None and self.ahead is not program:
            given.update(self.ahead.native.weights(newer))
        for name in behind - newer:
            if name in self.variables:
                given[name] = self._value(name, program.params[name])
        if given:
            program.native.set_weights(given)
            self.copied += len(given)

    def trained(self, program: Program, names: set[str]) -> None:
        """A program has newer values of these parameters."""
        self.ahead = program
        newly = (names & self.variables.keys()) - self.stale
        self.stale |= newly
        for name in newly:
            for store, _ in _link(self.variables[name]).names:
                if store is not self and self not in store.others:
                    store.others.append(self)
        for other in self.programs:
            if other is not program:
                other.behind |= names

    def pull(self) -> None:
        """Gives the variables of Keras the values that the program ahead has."""
        stale, self.stale = self.stale, set()
        if not stale or self.ahead is None:
            return
        try:
            values = self.ahead.native.weights(stale)
            for name, value in values.items():
                self._assign(name, numpy(value))
        except BaseException:
            # Ctrl-C ends a wait: the program still has newer values.
            self.stale |= stale
            raise
        self.copied += len(values)

    def _notice(self) -> None:
        """Finds the variables that were written, in place or not, here or by another store."""
        while self.others:
            self.others[-1].pull()
            self.others.pop()
        for name, before in self._stamps.items():
            stamp = _stamp(self.variables[name])
            if stamp != before and name not in self.stale:
                self._stamps[name] = stamp
                self.changed.add(name)
        if self.changed:
            for program in self.programs:
                program.behind |= self.changed
            self.changed.clear()

    def _value(self, name: str, dtype: str) -> Any:
        value = self.variables[name].value
        if name == "optimizer.step" or dtype == "f64":
            kind = np.int64 if dtype == "i64" else np.float64
            return tensor(np.asarray(_host(value)).astype(kind))
        return tensor(_host(value))

    def _assign(self, name: str, value: np.ndarray) -> None:
        from keras import ops

        variable = self.variables[name]
        link = _link(variable)
        # What is written here is no news to this store.
        names, link.names = link.names, []
        try:
            new = ops.convert_to_tensor(value, dtype=variable.dtype)
            variable._direct_assign(ops.reshape(new, variable.shape))
        finally:
            link.names = names
        link.written(by=self)
        stamp = _stamp(variable)
        if stamp is not None:
            self._stamps[name] = stamp


def _host(value: Any) -> Any:
    """An array in host memory, with its bits: what Keras converts is a copy at most once."""
    from keras import ops

    return ops.convert_to_numpy(value)
