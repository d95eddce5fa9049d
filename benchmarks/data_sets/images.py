"""MNIST and Fashion-MNIST: as classes 0 to 4 against 5 to 9, and as pictures."""

import numpy as np

from benchmarks.data_sets import files
from benchmarks.data_sets.files import Files, Folder

# The Fashion-MNIST server offers no https; what protects its content is the checksum.
FILES = {
    "mnist": Files("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/", "-ubyte.gz", {
        "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"}),
    "fashion_mnist": Files(
        "fashion_mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "-ubyte.gz", {
            "train-images-idx3": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
        }),
}
PRIOR = 0.5
UNITS = {"mnist": "one image, not one writer: a writer contributed many",
         "fashion_mnist": "one image"}
_HELD_OUT = 10_000  # rows of the training file that validation tests on


def raw(name: str, part: str, data_dir: Folder = None) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 `[n, 28, 28]` and classes uint8 `[n]` of "train" or "t10k"."""
    pixels, classes = (files.idx(FILES[name].read(f"{part}-{what}", data_dir))
                       for what in ("images-idx3", "labels-idx1"))
    return pixels, classes


def parts(name: str, split: str, seed: int, data_dir: Folder) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels."""
    def rows(part: str) -> tuple[np.ndarray, np.ndarray]:
        images, classes = raw(name, part, data_dir)
        return images, (classes < 5).astype(np.float32)

    x, y = rows("train")
    if split == "validation":
        return (*files.shuffle(x[:-_HELD_OUT], y[:-_HELD_OUT], seed), x[-_HELD_OUT:],
                y[-_HELD_OUT:])
    return (*files.shuffle(x, y, seed), *rows("t10k"))


def _check(name: str) -> None:
    """Refuses other names."""
    if name not in FILES:
        raise ValueError(f"unknown images {name!r}; choose one of {', '.join(FILES)}")


def images(name: str, *, size: int = 7, data_dir: Folder = None) -> np.ndarray:
    """Load the training images of mnist or fashion_mnist as small grey pictures.

    Pixels are divided by 255 and averaged over square blocks, and nothing else: no centring, no
    normalising, no labels. The order is that of the file.

    Args:
        name: "mnist" or "fashion_mnist".
        size: Pixels along an edge, a divisor of 28.
        data_dir: Folder with the data files, see ``data.load``.

    Returns:
        Pixels in [0, 1], float32 of shape [60000, size * size].

    Raises:
        ValueError: If an argument is not one of the above, or as ``data.load``.
        OSError: If a download fails.
    """
    _check(name)
    if size < 1 or 28 % size:
        raise ValueError(f"size must divide 28, got {size}")
    pixels = files.idx(FILES[name].read("train-images-idx3", data_dir))
    block = 28 // size
    blocks = pixels.reshape(len(pixels), size, block, size, block)
    return (blocks.mean(axis=(2, 4), dtype=np.float32) / 255).reshape(len(pixels), -1)


def labelled(name: str, part: str = "train", data_dir: Folder = None
             ) -> tuple[np.ndarray, np.ndarray]:
    """The images of mnist or fashion_mnist as they are, and their classes.

    Args:
        name: "mnist" or "fashion_mnist".
        part: "train" or "t10k", the test images.
        data_dir: Folder with the data files, see ``data.load``.

    Returns:
        Pixels, uint8 of shape [n, 784], and classes, int32 of shape [n].

    Raises:
        ValueError: If an argument is not one of the above, or as ``data.load``.
        OSError: If a download fails.
    """
    _check(name)
    pixels, classes = raw(name, part, data_dir)
    return pixels.reshape(len(pixels), -1), classes.astype(np.int32)
