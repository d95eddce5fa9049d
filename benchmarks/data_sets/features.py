"""Fixed maps from a record to its features: functions of that record and of public constants.

Nothing is estimated from the loaded rows, so features cost no privacy budget, and replacing a
record changes one row. The exception is named so: "published scaling" of ijcnn1 stretches every
column to [0, 1] by its extremes among the training rows, as is usual in print; those are unreleased
functions of private data, and what is trained on them has no guarantee.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy import fft

# Published mean and standard deviation of pixel / 255 over the training images.
PIXELS = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}
# L2 norm given to every image. It sets the scale of useful step sizes and clipping norms, so
# changing it would mean tuning them again.
_NORM = 8.0
# ijcnn1: ten phase indicators, two columns of their own, ten lagged values. The weights were chosen
# on validation splits, by the AUC at epsilon 0.1.
_CENTRE = np.array([0.1] * 10 + [0, 0.3] + [0] * 10, np.float32)
_WEIGHTS = np.array([0.7] * 10 + [0.5, 3] + [3] * 10, np.float32)
_LAGS = np.array([1.0] * 10 + [1, 2] + [3] * 10, np.float32)  # for the products


@dataclasses.dataclass(frozen=True)
class Features:
    """A map from raw records to features, and the public knowledge that it uses.

    Attributes:
        of: Raw records (images uint8 [n, h, w], or a table float32 [n, d]) to float32 [n, d'].
        public: One sentence for each thing that is known beforehand.
        front_end: Whether a scorer on these features is more than a scorer on the raw record.
    """

    of: Callable[[np.ndarray], np.ndarray]
    public: tuple[str, ...]
    front_end: bool = False


def unit(x: np.ndarray) -> np.ndarray:
    """Divide each row by its own L2 norm; a row of zeros stays as it is."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _pool(images: np.ndarray) -> np.ndarray:
    """Average 2x2 blocks."""
    n, height, width = images.shape
    return images.reshape(n, height // 2, 2, width // 2, 2).mean(axis=(2, 4))


def pooled(images: np.ndarray, mean: float) -> np.ndarray:
    """Pool, centre and normalise: uint8 [n, h, w] to [n, h w / 4]."""
    small = _pool(images.astype(np.float32) / 255) - np.float32(mean)
    return unit(_flat(small)) * np.float32(_NORM)


def pixels(images: np.ndarray, mean: float) -> np.ndarray:
    """Centre and normalise: uint8 [n, h, w] to [n, h w]."""
    return unit(_flat(images.astype(np.float32) / 255 - np.float32(mean))) * np.float32(_NORM)


def standard(images: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Pixels minus the published mean, over the published standard deviation."""
    return _flat((images.astype(np.float32) / 255 - np.float32(mean)) / np.float32(deviation))


def cosines(images: np.ndarray, mean: float, slope: float) -> np.ndarray:
    """Cosine transform of the pooled image, frequency f weighted by 1 + |f| / slope, norm 8."""
    small = _pool(images.astype(np.float32) / 255) - np.float32(mean)
    frequency = np.arange(small.shape[1])
    weight = 1 + np.hypot(frequency[:, None], frequency) / slope
    spectrum = fft.dctn(small, axes=(1, 2), norm="ortho") * weight.astype(np.float32)
    return unit(_flat(spectrum)) * np.float32(_NORM)


def orientations(images: np.ndarray, *, brightness: bool = False, bins: int = 8,
                 cells: int = 7, blocks: bool = False) -> np.ndarray:
    """Where edges of which direction are: [n, bins cells^2], plus the cells' brightness, norm 8.

    Gradients by central differences; each is shared between its two nearest directions, and by
    triangular windows between cells (`blocks`: it belongs to one cell); square roots, minus the
    record's own mean, over its norm.
    """
    centres = (np.arange(cells) + 0.5) * images.shape[1] / cells - 0.5
    distance = np.abs(np.arange(images.shape[1])[:, None] - centres) * cells / images.shape[1]
    window = (distance < 0.5 if blocks else np.maximum(0, 1 - distance)).astype(np.float32)
    result = []
    for part in np.array_split(images, max(1, len(images) // 2000)):
        wide = np.pad(part.astype(np.float32) / 255, ((0, 0), (1, 1), (1, 1)))
        across = (wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]) / 2
        down = (wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]) / 2
        direction = np.arctan2(down, across) * (bins / (2 * np.pi))
        maps = []
        for k in range(bins):
            apart = np.abs((direction - k + bins / 2) % bins - bins / 2)
            maps.append(np.hypot(across, down) * np.maximum(0, 1 - apart))
        if brightness:
            maps.append(wide[:, 1:-1, 1:-1] / 2)
        sums = np.stack([window.T @ m @ window for m in maps], 1)
        roots = _flat(np.sqrt(sums))
        result.append(unit(roots - roots.mean(1, keepdims=True)))
    return np.concatenate(result).astype(np.float32) * np.float32(_NORM)


def edges_and_cosines(images: np.ndarray, mean: float, share: float) -> np.ndarray:
    """`orientations` and `cosines` side by side with shares of the squared norm, norm 8."""
    return np.hstack([np.float32(share**0.5) * orientations(images, blocks=True),
                      np.float32((1 - share)**0.5) * cosines(images, mean, 5.0)])


def weighted(x: np.ndarray) -> np.ndarray:
    """Centre the columns, and weigh them: a larger scale is a larger step along that column."""
    return ((x - _CENTRE) * _WEIGHTS).astype(np.float32)


def centred(x: np.ndarray) -> np.ndarray:
    """The columns minus fixed centres."""
    return (x - _CENTRE).astype(np.float32)


def products(x: np.ndarray, *, phases: bool) -> np.ndarray:
    """Columns and products of neighbouring lags; `phases`: each column in each phase, too."""
    z = ((x - _CENTRE) * _LAGS).astype(np.float32)
    phase, rest, lags = z[:, :10], z[:, 10:], z[:, 12:]
    parts = [z, lags[:, :-1] * lags[:, 1:], rest[:, :1] * rest[:, 1:2], rest[:, :1] * lags]
    if phases:
        parts.append(_flat((phase + np.float32(0.1))[:, :, None] * rest[:, None, :]))
    return np.hstack(parts).astype(np.float32)


def _images(name: str) -> dict[str, Features]:
    mean, deviation = PIXELS[name]
    centred_at = f"Pixels are centred at {mean:.4f}, the published mean."
    about = {
        "pooled": "Pixels are divided by 255 and averaged over 2x2 blocks.",
        "own norm": "Each image is divided by its own L2 norm and multiplied by 8.",
        "classes": "Classes 0-4 are positive and 5-9 negative; the prior 0.5 is five of ten "
                   "classes.",
        "cosines": "A cosine transform of the 14x14 image is weighted by 1 + frequency / {}.",
        "edges": "Edge directions ({}) in 7x7 cells, by a fixed map of the image, multiplied to "
                 "norm 8.",
    }
    ends = (about["own norm"], about["classes"])
    made = {
        "pooled": Features(functools.partial(pooled, mean=mean),
                           (centred_at, about["pooled"], *ends)),
        "pixels": Features(functools.partial(pixels, mean=mean), (centred_at, *ends)),
        "standard": Features(
            functools.partial(standard, mean=mean, deviation=deviation),
            (centred_at, f"They are divided by the published standard deviation {deviation:.4f}.",
             about["classes"])),
    }
    for bins, called in ((8, "edges"), (4, "edges 4")):
        made[called] = Features(
            functools.partial(orientations, brightness=name == "fashion_mnist", bins=bins),
            (about["edges"].format(bins), about["classes"]), front_end=True)
    for slope in (3.0, 4.0, 5.0):
        made[f"cosines {slope:g}"] = Features(
            functools.partial(cosines, mean=mean, slope=slope),
            (centred_at, about["pooled"], about["cosines"].format(f"{slope:g}"), *ends))
    for share in (0.4, 0.6):
        made[f"edges and cosines {share:g}"] = Features(
            functools.partial(edges_and_cosines, mean=mean, share=share),
            (centred_at, about["pooled"], about["edges"].format(8),
             "A pixel's edge belongs to one cell.", about["cosines"].format("5"),
             f"The edges have {share:g} of the squared norm.", about["classes"]), front_end=True)
    return made


_IJCNN1_CENTRED = (
    "The ten phase indicators are centred at 0.1, since ten phases occur in turn.",
    "Column 11 (counting from 0) is centred at 0.3.",
)
_LAG_PRODUCTS = ("Column 11 is doubled, columns 12-21 are tripled; products of neighbouring lags, "
                 "of column 10 with 11 and with the lags are added.")
FEATURES: dict[str, dict[str, Features]] = {
    "ijcnn1": {
        "weighted": Features(weighted, (
            *_IJCNN1_CENTRED,
            "Columns 0-9 are multiplied by 0.7, column 10 by 0.5 and columns 11-21 by 3, weights "
            "chosen on validation splits of the published file without paying for it.")),
        "centred": Features(centred, _IJCNN1_CENTRED),
        "products": Features(functools.partial(products, phases=False),
                             (*_IJCNN1_CENTRED, _LAG_PRODUCTS), front_end=True),
        "products, phases": Features(
            functools.partial(products, phases=True),
            (*_IJCNN1_CENTRED, _LAG_PRODUCTS, "Columns 10-21 are repeated in each phase."),
            front_end=True),
        "published scaling": Features(lambda x: x.astype(np.float32), (
            "NOT PUBLIC: columns are scaled to [0, 1] by their extremes in the training rows.",)),
    },
    "mnist": _images("mnist"),
    "fashion_mnist": _images("fashion_mnist"),
}
DEFAULT = {"ijcnn1": "weighted", "mnist": "pooled", "fashion_mnist": "pooled"}
