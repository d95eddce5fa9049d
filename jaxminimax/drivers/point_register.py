"""The point of every release that a loop of a user's made: one for a number, in memory and on disk.

A `Register` issues the numbers of releases, and admits each at one point, by the point's keyed
digest (`releases.point_keys`). It lives as long as the process, one for a key, however many
transformations are made of that key. With a journal the numbers and digests are also in a file, on
disk before a release is answered. So a process that goes on refuses another point for a number of
the process before it, and repeats the release at the same one.

A journal has lines of text, and is only added to:

    run MARK                 first: the key, the description and the problem's settings
    rows MARK                the data set
    machine MARK             of the lines below: what decides rounding
    NUMBER DIGEST            a release that was answered

A number is admitted again at its own point on the machine that it was made on, since another one
rounds the sum in other ways under the same noise. A last line without its end was not answered, and
is cut off. Marks and digests are known to the owner of the key alone.
"""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxminimax.base import own_files

_REGISTERS: dict[str, "Register"] = {}
_MAKING = threading.Lock()  # two threads would make two of one key


class Limits(NamedTuple):
    """Facts of the releases of a key.

    Attributes:
      run: mark of all that decides them but the rows and the operator.
      times: how many are allowed.
      ordered: whether each rests on the noise of those before, so that none comes after a later.
      machine: mark of what decides rounding.
    """

    run: str
    times: int
    ordered: bool
    machine: str


class Register:
    """The numbers of one key.

    Attributes:
      points: digest and machine of the releases that were answered, by number.
      issued: numbers that this process handed out.
      begun: whether a process before this one wrote the journal.

    Raises:
      ValueError: for a journal of another run, that is in use, damaged, or another user's.
    """

    def __init__(self, limits: Limits, path: str | os.PathLike[str] | None) -> None:
        self.limits, self.issued, self.unwatched = limits, set[int](), set[int]()
        self.points = dict[int, tuple[str, str]]()
        self._marks = dict[str, str]()  # by their names
        self.closed, self.begun, self._file = False, False, -1
        self._lock, self._held = threading.Lock(), contextlib.ExitStack()
        self._process = os.getpid()
        if path is not None:
            with contextlib.ExitStack() as resources:  # closed, unless all is well
                self._open(pathlib.Path(path), resources)
                self._held = resources.pop_all()

    def _open(self, path: pathlib.Path, resources: contextlib.ExitStack) -> None:
        own_files.check_parent(path.absolute().parent)
        resources.enter_context(own_files.locked(path))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        resources.callback(os.close, self._file)
        own_files.check(path)
        text = path.read_bytes()
        text = text[:text.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(text))
        try:
            lines = [line.split(" ") for line in text.decode("ascii").splitlines()]
            for place, (name, value) in enumerate(lines):
                if (place == 0) != (name == "run"):
                    raise KeyError(name)
                if name.isdigit():
                    self.points[int(name)] = value, self._marks["machine"]
                else:
                    self._marks[name] = value
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path} is no journal of private_gradient, or is damaged: give the "
                             "one of this run, or another key and a path that is free.") from error
        self.begun = bool(lines)
        self.bind("run", self.limits.run, "description or problem, or the journal is another one")
        if self._marks.get("machine") != self.limits.machine:
            self._write(f"machine {self.limits.machine}")

    def _write(self, line: str) -> None:
        if self.has_journal:
            text = f"{line}\n".encode()
            if os.write(self._file, text) != len(text):  # the disk is full
                self.closed = True  # a next line would be added to a part of this one
                raise OSError("A line of the journal was written in part, so its release is not "
                              "answered, and this private_gradient is closed: make room on the "
                              "disk, and go on in another process.")
            os.fsync(self._file)

    @property
    def has_journal(self) -> bool:
        """Says if a process that goes on learns of these points."""
        return self._file >= 0

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits for other threads, and refuses a process that was forked off.

        Such a process has a copy of what was noted, and nobody learns of what it adds.

        Raises:
          RuntimeError: in another process than the one that made it.
        """
        if os.getpid() != self._process:
            raise RuntimeError("This private_gradient is that of the process that made it, and not "
                               "of one that was forked off: make another one there, with a key of "
                               "its own by secret_key().")
        with self._lock:
            yield

    def bind(self, name: str, mark: str, difference: str) -> None:
        """Notes a mark, or refuses another one than before.

        Raises:
          ValueError: naming what is another one.
        """
        with self._alone():
            if name not in self._marks:
                self._marks[name] = mark
                self._write(f"{name} {mark}")
            if self._marks[name] != mark:
                raise ValueError(f"The key was used with another {difference}, and equal noise for "
                                 "both would give records away: make another private_gradient, "
                                 "with a key of its own by secret_key().")

    def issue(self, number: int, watched: bool) -> None:
        """Notes that a number is handed out, again if `watched`: `admit` then decides about it.

        Raises:
          RuntimeError: for one that was handed out before, or after the end.
        """
        with self._alone():
            if self.closed:
                raise RuntimeError("This private_gradient is closed: make another one, with a key "
                                   "of its own.")
            if number in self.issued and not watched:
                raise RuntimeError(
                    f"Release number {number} was handed out before: go on with the newest state; "
                    "or make another private_gradient, with a key of its own. With watched=True a "
                    "number may come again at its own point.")
            self.issued.add(number)
            if not watched:
                self.unwatched.add(number)

    def admit(self, words: Any) -> np.bool_:
        """Decides whether a release is answered: at one point for a number.

        Args:
          words: both of the digest and the number, uint32 `[3]`; 2^32 - 1 for one that is refused.

        Raises:
          RuntimeError: for another point than before, one beyond the end, or out of order.
        """
        high, low, number = np.asarray(words).tolist()
        if number == 2**32 - 1:
            return np.bool_(False)
        point = f"{high:08x}{low:08x}", self.limits.machine
        with self._alone():
            answered = self.points.get(number)
            if answered == point:
                return np.bool_(True)  # the same release once more
            if answered is not None:
                difference = "on another machine" if answered[0] == point[0] else "at another point"
                raise RuntimeError(
                    f"Release number {number} was made {difference} before: a state was copied, "
                    "begun anew by init, or is an older one. Go on with the newest state; or make "
                    "another private_gradient, with a key of its own.")
            if self.closed or number >= self.limits.times:
                raise RuntimeError(f"Release number {number} is beyond the end: {self.limits.times}"
                                   " are described, or this private_gradient is closed.")
            if self.limits.ordered and self.points and number < max(self.points):
                raise RuntimeError(f"Release number {number} comes after a later one, whose noise "
                                   "rests on its own: use tickets in their order.")
            self._write(f"{number} {point[0]}")
            self.points[number] = point
            return np.bool_(True)

    def close(self) -> None:
        """Ends the run: no number is handed out or admitted any more."""
        with self._alone():
            self.closed = True
            self._held.close()


def register(key: str, limits: Limits, path: str | os.PathLike[str] | None) -> Register:
    """Returns the register of a key, which is made once.

    Args:
      key: mark of the key.
      limits: as of `Register`.
      path: of its journal; None for none.

    Raises:
      ValueError: for a key of another run, or one whose run has no such journal.
    """
    with _MAKING:
        if key not in _REGISTERS:
            _REGISTERS[key] = Register(limits, path)
    if _REGISTERS[key].limits != limits:
        raise ValueError("The key was used for another private_gradient, with another description, "
                         "strategy or mesh: secret_key() draws one for each.")
    if path is not None and not _REGISTERS[key].has_journal:
        raise ValueError("The key has a private_gradient without a journal in this process: give "
                         "journal=... from the beginning.")
    return _REGISTERS[key]
