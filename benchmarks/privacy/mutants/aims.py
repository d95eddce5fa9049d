"""Where planted bugs go: each function, looked up where the code uses it.

This is the one place to change when code moves; files with `BUGS` of their own have their places.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

from benchmarks.privacy.mutants import places as mutant_places
from jaxminimax import ftrl, group_oco, sgda
from jaxminimax.accounting import curve
from jaxminimax.gradients import clipping, summation
from jaxminimax.gradients.ghost import convolution, factors
from jaxminimax.gradients.ghost import sums as ghost_sums
from jaxminimax.mechanism import (
    Repeat,
    composed,
    costs,
    distinct,
    factorisation,
    grid,
    poisson,
)
from jaxminimax.mechanism import solutions as lengths
from jaxminimax.placement import host_data
from jaxminimax.problems import _vi
from jaxminimax.releases import groups, noisy_sums, reading, release_keys, solutions, stream, sums

AIMS: dict[str, tuple[Any, str]] = {
    # noise
    "integer noise": (noisy_sums, "floored_normal"),
    "integer noise of both players": (noisy_sums, "integer_noise"),
    "integer Laplace noise": (noisy_sums, "floored_laplace"),
    "sum over all groups": (groups, "noisy_sum"),
    "noise of counts": (sums, "floored_normal"),
    "index": (groups, "chosen"),
    "margin of the noise": (noisy_sums, "ROUNDING_MARGIN"),
    "dither": (noisy_sums, "dither"),
    "noise on a sum": (noisy_sums, "add_noise_and_normalise"),
    "node": (stream, "_node"),
    "what correlated noise is made of": (stream, "floored_normal"),
    "keys of a release": (release_keys, "Keys"),
    "key and sample": (reading, "draw_sample"),
    "words of operators": (release_keys.Keys, "operators"),
    "stream of keys": (release_keys, "stream"),
    "numbers of a round": (mutant_places.Twice, "number"),
    "parts of a round": (mutant_places.Two, "parts"),
    # samples
    "sample": (reading, "draw"),
    "law of sizes": (poisson, "thresholds"),
    "slots of a sample": (poisson, "lowest_words"),
    "sample that fits": (poisson, "_fits"),
    "new rows": (distinct, "firsts"),
    "part": (reading, "part_of"),
    "rows sent ahead": (host_data.Window, "read"),
    "words of samples sent ahead": (release_keys.Keys, "ahead"),
    # sums
    "weight": (summation, "clip_weight"),
    "norm": (summation, "norms"),
    "joint norm": (summation, "joint_ratio"),
    "count": (summation.Summation, "num_unclipped"),
    "clipped sum": (clipping.ClippedSum, "sums"),
    "gram": (factors, "_gram"),
    "norms of matrices": (ghost_sums, "norms_of"),
    "norms of tied tables": (factors, "union_norms"),
    "pixels of a window": (convolution, "patches"),
    "rows of a slice": (summation, "fresh"),
    "records by themselves": (summation, "each"),
    "clipped losses": (groups, "_clipped"),
    "clipped scores": (groups, "_clipped_parts"),
    "product with a record": (_vi, "product_with"),
    "noise unit": (solutions, "noise_unit"),
    "length of a solution": (lengths, "solution_length"),
    # algorithms
    "update": (sgda, "update"),
    "release": (sums, "release_and_clip"),
    "single loss": (group_oco, "release_loss"),
    "round on a stream": (ftrl, "observe_record"),
    # the accountant
    "charge": (costs, "price"),
    "rounding of a distance": (grid, "_rounding"),
    "length of columns": (factorisation, "norms"),
    "stopped rounds": (composed._Several, "truncated"),
    "multiplier": (Repeat, "multiplier"),
    "shift": (curve, "shift"),
    "delta": (curve, "named_epsilon"),
}


def replace(aim: str, make: Callable[[Any], Any],
            aims: dict[str, tuple[Any, str]] = AIMS) -> Callable[..., Any]:
    """Plants `make(original)` where `aims` says."""
    where, name = aims[aim]
    return lambda: mock.patch.object(where, name, make(getattr(where, name)))
