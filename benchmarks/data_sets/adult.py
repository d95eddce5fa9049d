"""Adult: census records, in the usual binary form and as they were written."""

import numpy as np

from benchmarks.data_sets import files
from benchmarks.data_sets.files import Files, Folder

FILES = Files(
    "adult", "https://raw.githubusercontent.com/X-DataInitiative/tick-datasets/master/binary/adult/",
    ".bz2",
    {"adult123.trn": "73ce74d43bbfc988b08e6ecf738cf5484f19dafa143c31f702f3a8b779d277e5",
     "adult123.tst": "bdb2ec9642e77947a67269471506b18bc4dcf03413f44814dc24833432ba818d"},
    named=("adult123", "adult"))  # the source calls the binary form just "adult"
AS_WRITTEN = Files(
    "adult", "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", "",
    {"adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
     "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"},
    unpacked=True)
PRIOR = 0.25
UNIT = "one census record (one person)"
PUBLIC = (
    "The prior 0.25 is rounded from the published share of positives (about 24 %).",
    "The 123 binary columns are centred at 14/123: a record fills about 14 of them.",
    "The publishers of the binary form cut numeric attributes at quintiles.",
)
# A record has 14 attributes and switches on one bin for each, of 123 bins in all.
_CENTRE = 14 / 123
_HELD_OUT = 10_000  # rows of the training file that validation tests on


def rows(part: str, data_dir: Folder = None) -> tuple[np.ndarray, np.ndarray]:
    """Of the file "trn" or "tst", in its order."""
    x, y = files.svmlight(FILES.read(f"adult123.{part}", data_dir), n_features=123,
                               zero_based=True)
    return centred(x), y


def centred(x: np.ndarray) -> np.ndarray:
    """Record by record."""
    return x - np.float32(_CENTRE)


def parts(split: str, seed: int, data_dir: Folder) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels."""
    x, y = rows("trn", data_dir)
    if split == "validation":
        return (*files.shuffle(x[:-_HELD_OUT], y[:-_HELD_OUT], seed), x[-_HELD_OUT:],
                y[-_HELD_OUT:])
    return (*files.shuffle(x, y, seed), *rows("tst", data_dir))
