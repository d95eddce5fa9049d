"""Progress bars, if wanted and if tqdm is installed; nothing at all without it."""

import importlib.util
from typing import Any


def possible() -> bool:
    """Whether tqdm is installed."""
    return importlib.util.find_spec("tqdm") is not None


class Bar:
    """A bar of one run, or nothing."""

    def __init__(self, total: int, done: int, wanted: bool, unit: str = "round") -> None:
        self._bar: Any = None
        if wanted and possible():
            import tqdm

            self._bar = tqdm.tqdm(total=total, initial=done, unit=unit)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, number: int) -> None:
        """Moves the bar on by `number`."""
        if self._bar is not None:
            self._bar.update(number)


class Ticks:
    """A bar that a compiled program moves: it has no beginning but its first tick.

    One object serves every call of the program: the bar that is full is closed, and the next tick
    begins another.
    """

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._bar: Bar | None = None

    def __call__(self, number: Any) -> None:
        """So many runs more have ended."""
        if self._bar is None:
            self._bar, self._done = Bar(self._total, 0, True, "run"), 0
        number = min(int(number), self._total - self._done)
        self._bar.update(number)
        self._done += number
        if self._done == self._total:
            self._bar.__exit__()
            self._bar = None
