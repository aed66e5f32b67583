"""The exceptions of fanwise."""

from collections.abc import Sequence


class Error(ValueError):
    """An error of fanwise, with a stable code and the ways out that are known."""

    def __init__(self, message: str, *, code: str = "", hints: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.hints = list(hints)


class RefusedError(Error):
    """A graph may not be split, or a model has a part that fanwise does not compute."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        operator: str = "",
        layer: str = "",
        hints: Sequence[str] = (),
    ) -> None:
        super().__init__(message, code=code, hints=hints)
        self.operator = operator
        self.layer = layer
