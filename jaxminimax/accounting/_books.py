"""The file of a ledger: read whole or not at all, one writer at a time, on disk before it counts.

A process that changes it holds an exclusive lock on PATH.lock in the same folder: see `own_files`.
The file holds no key and no row of the data.
"""

import contextlib
import hashlib
import json
import os
from typing import Any

from jaxminimax.base import own_files

WHAT, VERSION = "jaxminimax ledger", 1


class Books:
    """The content of a file, under a lock."""

    def __init__(self, path: str | os.PathLike, wait: float = 60.0) -> None:
        # a rename would replace a link, and leave two ledgers
        self.path = os.path.realpath(path)
        self._wait = wait

    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.exists(self.path)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else changes the file.

        Raises:
          ValueError: if there is no such folder, or others hold the lock for a minute.
        """
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise ValueError(f"The ledger's folder {folder} is not there: make it first.")
        return own_files.locked(self.path, self._wait)

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
        own_files.write(self.path, text)


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
