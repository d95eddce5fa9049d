"""Files of data: where each folder comes from, what its files must be, and their formats.

A file is looked for in the folder that the caller or the environment variable JAXMINIMAX_DATA
names, as `<data set>/<file>`, else in `~/.cache/jaxminimax`, where it is downloaded to once. Its
SHA-256 is checked every time.
"""

import bz2
import dataclasses
import functools
import gzip
import hashlib
import http.client
import io
import os
import pathlib
import urllib.request

import numpy as np
from sklearn.datasets import load_svmlight_file

Folder = str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True)
class Files:
    """Files of one folder and one source.

    Attributes:
        folder: Of the data set, below the data folder.
        source: Public address that they are below, with a slash at its end.
        ending: Of every file's name.
        checksums: SHA-256 of each file, by its name without the ending.
        named: What a name begins with here, and what instead at the source.
        unpacked: Whether a file may also lie there compressed by gzip, as `<file>.gz`; the
            checksum is of its content.
    """

    folder: str
    source: str
    ending: str
    checksums: dict[str, str]
    named: tuple[str, str] = ("", "")
    unpacked: bool = False

    def address(self, name: str) -> str:
        """Of a file at its source."""
        here, there = self.named
        return self.source + there + name.removeprefix(here) + self.ending

    def read(self, name: str, data_dir: Folder = None) -> bytes:
        """The content of a file, downloaded if need be and checked in any case.

        Raises:
            ValueError: If a file is missing from a folder that was named, or is another one.
            OSError: If a download fails.
        """
        url = self.address(name)
        given = data_dir or os.environ.get("JAXMINIMAX_DATA")
        home = pathlib.Path(given or "~/.cache/jaxminimax").expanduser() / self.folder
        path = home / (name + self.ending)
        packed = path.with_name(path.name + ".gz")
        if path.is_file():
            return self._checked(name, path.read_bytes(), str(path))
        if self.unpacked and packed.is_file():
            return self._checked(name, gzip.decompress(packed.read_bytes()), str(packed))
        if given:
            raise ValueError(
                f"{path} is missing; save {url} there, or give neither data_dir nor "
                "JAXMINIMAX_DATA to have it downloaded into ~/.cache/jaxminimax")
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise OSError(
                f"could not download {url} ({error}); save it as {self.folder}/{path.name} in a "
                "folder of your choice and name that folder by data_dir or JAXMINIMAX_DATA"
            ) from error
        self._checked(name, content, url)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renaming is atomic: another process sees the whole file or none.
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_bytes(content)
        os.replace(partial, path)
        return content

    def _checked(self, name: str, content: bytes, where: str) -> bytes:
        expected, found = self.checksums[name], hashlib.sha256(content).hexdigest()
        if found != expected:
            raise ValueError(
                f"wrong SHA-256 of {where}: expected {expected}, found {found}; the file is "
                "damaged or another version, so remove it and get it again")
        return content


@functools.lru_cache(maxsize=2)  # the two files of a data set, split anew for every seed
def svmlight(content: bytes, *, n_features: int, zero_based: bool
             ) -> tuple[np.ndarray, np.ndarray]:
    """Read bzip2-compressed svmlight text; a positive label becomes 1, any other 0."""
    text = io.BytesIO(bz2.decompress(content))
    x, y = load_svmlight_file(text, n_features=n_features, dtype=np.float32, zero_based=zero_based)
    result = x.toarray(), (y > 0).astype(np.float32)
    for array in result:
        array.flags.writeable = False
    return result


def idx(content: bytes) -> np.ndarray:
    """Read a gzip-compressed idx file of unsigned bytes."""
    raw = gzip.decompress(content)
    if raw[:3] != b"\0\0\x08":  # Two zero bytes, then the element type.
        raise ValueError("not an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def shuffle(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Permute rows, so that one disjoint pass over them sees mixed classes."""
    order = np.random.default_rng(seed).permutation(len(y))
    return x[order], y[order]


def hold_out(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """Permute rows and cut them into four fifths for training and one fifth for testing."""
    x, y = shuffle(x, y, seed)
    cut = len(y) * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]
