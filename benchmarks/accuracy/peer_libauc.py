"""Losses of LibAUC at scores of a file, in a Python that has it; see `libauc_values`.

    python -m benchmarks.accuracy.peer_libauc SCORES.npz

The file has scores `[n, K]` and classes y `[n]`; class 0 is the positive one of two. Prints JSON.
"""

import importlib.metadata
import itertools
import json
import sys
from typing import Any

import numpy as np
import torch
from libauc.losses import auc as losses


def _auc(s: np.ndarray, positive: np.ndarray, version: str) -> float:
    """`AUCMLoss` at the best a, b and alpha; of version 1 without its factor p (1 - p)."""
    loss = losses.AUCMLoss(margin=1.0, version=version, device="cpu").double()
    a, b, p = s[positive].mean(), s[~positive].mean(), positive.mean()
    for number, best in ((loss.a, a), (loss.b, b), (loss.alpha, 1 + b - a)):
        number.data[:] = best
    value = loss(torch.tensor(s), torch.tensor(positive.astype(int)))
    return float(value.detach()) / (p * (1 - p) if version == "v1" else 1)


def _macro(scores: np.ndarray, y: np.ndarray) -> float:
    """`MultiLabelAUCMLoss`, the mean over classes, at the best a, b and alpha."""
    one = y[:, None] == np.arange(scores.shape[1])
    loss = losses.MultiLabelAUCMLoss(version="v2", num_labels=one.shape[1], device="cpu")
    a, b = (torch.tensor(np.mean(scores, 0, where=of)) for of in (one, ~one))
    loss.a, loss.b, loss.alpha = a, b, 1 + b - a
    return float(loss(torch.tensor(scores), torch.tensor(one.astype(int))))


def _threshold(values: np.ndarray, share: float) -> np.ndarray:
    """Returns numbers between the largest `share` of each row and the rest."""
    kept = round(share * values.shape[-1])
    return np.sort(values)[..., ::-1][..., kept - 1:kept + 1].mean(-1)


def _at(loss: Any, states: dict[str, np.ndarray], s: np.ndarray, positive: np.ndarray) -> float:
    """The loss at thresholds and weights that its own steps do not move."""
    for name, value in states.items():
        setattr(loss, name, torch.tensor(value, dtype=torch.float64)[..., None])
    value = loss(torch.tensor(s)[:, None], torch.tensor(positive.astype(int)), torch.arange(len(s)))
    for name, before in states.items():
        if abs(getattr(loss, name).numpy()[..., 0] - before).max() > 1e-6:
            raise RuntimeError(f"{name} moves, so it is not the best one")
    return float(value)


def _parts(s: np.ndarray, positive: np.ndarray, max_fpr: float, two_way: tuple[float, float]
           ) -> tuple[float, float]:
    """`pAUC_CVaR_Loss` and `tpAUC_CVaR_loss` at the best thresholds."""
    pairs = (1 - s[positive][:, None] + s[~positive])**2
    largest, share = two_way[0], 1 - two_way[1]

    def spread(of_positives: np.ndarray) -> np.ndarray:
        result = np.zeros(len(s))
        result[positive] = of_positives
        return result

    numbers: dict[str, Any] = {"surr_loss": "squared", "device": "cpu"}
    one = losses.pAUC_CVaR_Loss(len(s), sum(positive), margin=1.0, beta=max_fpr, **numbers)
    two = losses.tpAUC_CVaR_loss(len(s), threshold=1.0, theta_0=share, theta_1=largest, **numbers)
    edge = _threshold(pairs, largest)
    means = edge + np.maximum(pairs - edge[:, None], 0).mean(1) / largest
    last = _threshold(means, share)
    states = {"s1": spread(edge), "s2": last[None], "u": spread(means),
              "dual_var": spread(means > last)}
    return (_at(one, {"u_pos": spread(_threshold(pairs, max_fpr))}, s, positive),
            _at(two, states, s, positive))


def values(scores: np.ndarray, y: np.ndarray, max_fpr: float, two_way: tuple[float, float]
           ) -> dict[str, float]:
    """Losses with the squared surrogate and margin 1, by what they measure."""
    s, positive = scores[:, 0], y == 0
    pairs = [(i, (y == i) | (y == j)) for i, j in itertools.permutations(
        range(scores.shape[1]), 2)]
    one, two = _parts(s, positive, max_fpr, two_way)
    return {
        "AUC": _auc(s, positive, "v1"),
        "AUC, version 2": _auc(s, positive, "v2"),
        "one-versus-rest AUC": _macro(scores, y),
        "Hand and Till": float(np.mean([_auc(scores[of, i], y[of] == i, "v1")
                                        for i, of in pairs])),
        "one-way AUC": one, "two-way AUC": two,
    }


def main() -> None:
    """Reads the scores, prints the losses and the version."""
    with np.load(sys.argv[1]) as made:
        result = values(made["scores"], made["y"], float(made["max_fpr"]),
                        tuple(made["two_way"].tolist()))
    print(json.dumps({"values": result, "version": importlib.metadata.version("libauc")}))


if __name__ == "__main__":
    main()
