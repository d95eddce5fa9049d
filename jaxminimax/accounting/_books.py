"""The file of a ledger: read whole or not at all, one writer at a time, on disk before it counts.

A change is made while an exclusive lock is held on a file beside it, PATH.lock, which the operating
system releases when a process ends, however it ends. The new content is written to another file,
flushed to the disk, and renamed over the old one: a crash leaves the old content or the new one.
The file must lie where locks work, which network file systems do not promise. It holds no key and
no row of the data.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

WHAT, VERSION = "jaxminimax ledger", 1
_PAUSE = 0.02  # seconds between two attempts to lock


class Books:
    """The content of a file, under a lock."""

    def __init__(self, path: str | os.PathLike, wait: float = 60.0) -> None:
        # a rename would replace a link, and leave two ledgers
        self.path = os.path.realpath(path)
        self._wait = wait

    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.exists(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the file.

        Raises:
          ValueError: if there is no such folder, or others hold the lock for a minute.
        """
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise ValueError(f"The ledger's folder {folder} is not there: make it first.")
        handle = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            end = time.monotonic() + self._wait
            while not _lock(handle):
                if time.monotonic() > end:
                    raise ValueError(f"{self.path} has been locked by another process for "
                                     f"{self._wait:g} seconds: wait for it, or end it.")
                time.sleep(_PAUSE)
            yield
        finally:
            os.close(handle)  # and with it the lock

    def read(self) -> dict[str, Any]:
        """The content.

        Raises:
          ValueError: for a file that is not there, is no ledger, or is damaged.
        """
        try:
            with open(self.path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            raise ValueError(f"There is no ledger at {self.path}: Ledger(path, epsilon=..., "
                             "delta=...) opens one.") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{self.path} is no ledger, or is cut off ({error}): what was spent "
                             "is not known, so restore the file.") from None
        if not isinstance(content, dict) or content.get("what") != WHAT:
            raise ValueError(f"{self.path} is no ledger of jaxminimax: give another path.")
        if content.get("version") != VERSION:
            raise ValueError(f"{self.path} is a ledger of version {content.get('version')!r}, and "
                             f"this library reads {VERSION}: use the version that wrote it.")
        if content.pop("checksum", None) != _checksum(content):
            raise ValueError(f"{self.path} was changed by something else, or is damaged: what was "
                             "spent is not known, so restore the file.")
        return content

    def write(self, content: dict[str, Any]) -> None:
        """Replaces the content, under the lock; returns when it is on disk.

        Raises:
          ValueError: if the file has other names, which would keep the old content.
        """
        if self.exists() and os.stat(self.path).st_nlink > 1:
            raise ValueError(f"{self.path} has several names (hard links), and the others would "
                             "keep what was spent before: remove them.")
        content = {**content, "what": WHAT, "version": VERSION}
        text = json.dumps({**content, "checksum": _checksum(content)}, indent=1, allow_nan=False)
        fresh = f"{self.path}.{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with open(fresh, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(fresh)
        if sys.platform != "win32":  # the name, too
            folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _lock(handle: int) -> bool:
    """Takes the lock, if nobody has it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
