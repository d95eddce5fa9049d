"""ijcnn1: rows of a time series of an engine, in the svmlight format."""

import numpy as np

from benchmarks.data_sets import files
from benchmarks.data_sets.files import Files, Folder

FILES = Files(
    "ijcnn1",
    "https://raw.githubusercontent.com/X-DataInitiative/tick-datasets/master/binary/ijcnn1/",
    ".bz2",
    {"ijcnn1.trn": "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3",
     "ijcnn1.tst": "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"})
PRIOR = 0.1
UNIT = "one row (time step), not one measured value: neighbouring rows share 9 lagged values"
PUBLIC = (
    "The prior 0.1 is the published share of positives (about 10 %).",
    "The publishers of the file had scaled its values.",
)


def rows(part: str, data_dir: Folder = None) -> tuple[np.ndarray, np.ndarray]:
    """Of the file "trn" or "tst", in its order."""
    return files.svmlight(FILES.read(f"ijcnn1.{part}", data_dir), n_features=22,
                               zero_based=False)


def parts(split: str, seed: int, data_dir: Folder) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels."""
    result = files.hold_out(*rows("trn", data_dir), seed)
    if split == "validation":
        return files.hold_out(result[0], result[1], seed + 100)
    return (*result[:2], *rows("tst", data_dir)) if split == "file" else result
