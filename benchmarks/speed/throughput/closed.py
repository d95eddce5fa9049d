"""Clipped sums in closed form, for NumPy, JAX and torch alike: no `[batch, parameters]` array."""

from collections.abc import Callable
from typing import Any

from benchmarks.speed.throughput.cases import CLIP, PRIOR, Arrays, Case


def squares(xp: Any, a: Any) -> Any:
    """The squared norm of every row."""
    return xp.einsum("ij,ij->i", a, a)


def norms_and_sums(case: Case, xp: Any, theta: Arrays, x: Any, square_x: Any = None
                   ) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """Scores of a batch, norms of its gradients, and their weighted sum.

    Args:
      case: the workload.
      xp: the library of arrays.
      theta: parameters of the scorer.
      x: the batch.
      square_x: squared norms of its rows, where they are resident; otherwise they are computed.

    Returns:
      Scores s `[b]`; `d -> ` the squared norms of d_i ds_i/dtheta, with what `total` needs; and
      `(kept, d, weight) -> sum_i weight_i d_i ds_i/dtheta`.
    """
    def of_rows() -> Any:
        return squares(xp, x) if square_x is None else square_x

    if case.model == "linear":
        s = x @ theta["k"]
        return (s, lambda d: (d * d * of_rows(), None),
                lambda _, d, weight: {"k": (weight * d) @ x})
    if case.model != "mlp":
        raise ValueError(f"no closed form for {case.workload!r}")
    h = x @ theta["W1"] + theta["b1"]
    r = h * (h > 0)
    s = r @ theta["W2"]

    def norms(d: Any) -> tuple[Any, Any]:
        e = (d[:, None] * (h > 0)) * theta["W2"]
        return squares(xp, e) * (of_rows() + 1) + d * d * squares(xp, r), e

    def total(e: Any, d: Any, weight: Any) -> Arrays:
        e = weight[:, None] * e
        return {"W1": x.T @ e, "b1": e.sum(0), "W2": (weight * d) @ r}

    return s, norms, total


def clipped_sums(case: Case, xp: Any, z: Arrays, x: Any, y: Any, square_x: Any = None) -> Arrays:
    """The clipped sums of both players' operators with closed-form norms; z = theta, a, b, v."""
    s, norms, total = norms_and_sums(case, xp, z["theta"], x, square_x)
    plus, minus = y / PRIOR, (1 - y) / (1 - PRIOR)
    pull_a, pull_b = 2 * plus * (s - z["a"]), 2 * minus * (s - z["b"])
    d = pull_a + pull_b + 2 * (1 + z["v"]) * (minus - plus)
    square, kept = norms(d)
    norm = xp.sqrt(square + pull_a**2 + pull_b**2)
    weight = CLIP[0] / xp.maximum(norm, xp.full_like(norm, CLIP[0]))
    g_v = 2 * s * (plus - minus)
    return {"theta": total(kept, d, weight), "a": -(weight * pull_a).sum(),
            "b": -(weight * pull_b).sum(), "v": xp.clip(g_v, -CLIP[1], CLIP[1]).sum()}
