"""Losses of LibAUC at scores of a file, in a Python that has it; see `libauc_values`.

    python -m benchmarks.utility.peer_libauc SCORES.npz

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

_MOST = 200_000  # calls until thresholds have settled


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


def _settled(loss: Any, states: tuple[str, ...], s: np.ndarray, positive: np.ndarray) -> float:
    """The loss, once its own steps of thresholds and weights move none of them."""
    for name in states:
        setattr(loss, name, getattr(loss, name).double())
    given = torch.tensor(s)[:, None], torch.tensor(positive.astype(int)), torch.arange(len(s))
    for _ in range(_MOST):
        before = [getattr(loss, name).clone() for name in states]
        value = loss(*given)
        if all(torch.equal(x, getattr(loss, n)) for x, n in zip(before, states, strict=True)):
            return float(value)
    raise RuntimeError(f"thresholds still move after {_MOST} steps")


def values(scores: np.ndarray, y: np.ndarray, max_fpr: float, two_way: tuple[float, float]
           ) -> dict[str, float]:
    """Losses with the squared surrogate and margin 1, by what they measure."""
    s, positive, numbers = scores[:, 0], y == 0, {"surr_loss": "squared", "device": "cpu"}
    pairs = [(i, (y == i) | (y == j)) for i, j in itertools.permutations(
        range(scores.shape[1]), 2)]
    one = losses.pAUC_CVaR_Loss(len(y), sum(positive), beta=max_fpr, eta=0.01, **numbers)
    two = losses.tpAUC_CVaR_loss(len(y), threshold=1.0, theta_0=1 - two_way[1], theta_1=two_way[0],
                                 alpha=0.01, beta_0=0.003, beta_1=0.001, **numbers)
    return {
        "AUC": _auc(s, positive, "v1"),
        "AUC, version 2": _auc(s, positive, "v2"),
        "one-versus-rest AUC": _macro(scores, y),
        "Hand and Till": float(np.mean([_auc(scores[of, i], y[of] == i, "v1")
                                        for i, of in pairs])),
        "one-way AUC": _settled(one, ("u_pos",), s, positive),
        "two-way AUC": _settled(two, ("u", "s1", "s2", "dual_var"), s, positive),
    }


def main() -> None:
    """Reads the scores, prints the losses and the version."""
    with np.load(sys.argv[1]) as made:
        result = values(made["scores"], made["y"], float(made["max_fpr"]),
                        tuple(made["two_way"].tolist()))
    print(json.dumps({"values": result, "version": importlib.metadata.version("libauc")}))


if __name__ == "__main__":
    main()
