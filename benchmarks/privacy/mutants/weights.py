"""Planted bugs of weights that multiply an operator before its clip, and what finds them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.gradients import clipping, summation

AIMS: dict[str, tuple[Any, str]] = {
    "weights of examples": (summation.Summation, "weights"),
    "clip of a multiple": (summation, "clip_weight"),
}


def after_the_clip(weights: Any) -> Any:
    """A share of any size multiplies what was clipped before."""
    def changed(self: summation.Summation, g: Any, mask: Any, share: Any) -> Any:
        alone, finite = weights(self, g, mask, None)
        if share is None:
            return alone, finite
        return self.players(lambda _, s: s * share.astype(s.dtype), alone), finite

    return changed


def a_tenth_longer(weight: Any) -> Any:
    return lambda ratio, present: 1.1 * weight(ratio / 1.1, present)


def longest() -> Finding:
    """The largest norm of one clipped gradient, multiplied before the clip, in clip norms."""
    total = dataclasses.replace(
        clipping.clipped_sum(lambda z, x: Saddle(x, ()), Saddle(2.0, None)),
        shared=True, before_clip=True)
    norms = [float(jnp.linalg.norm(total(Saddle(jnp.zeros(2), ()), (
        jnp.array([[0.6 * length, 0.8 * length]], jnp.float32), jnp.full(1, share))).w)) / 2
        for length in (1e-3, 1.0, 50.0) for share in (1e-2, 1.0, 3.0, 1e4)]
    return Finding(max(norms), 1 + 1e-6)


_NORM = "norm of one clipped multiple over the clip norm"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("a weight multiplied after the clip", "sensitivity: weights before the clip",
     "weights of examples", after_the_clip, longest, _NORM),
    ("multiples clipped a tenth too long", "sensitivity: weights before the clip",
     "clip of a multiple", a_tenth_longer, longest, _NORM),
)
