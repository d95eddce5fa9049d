"""What charges buy: noise for one epsilon before and now, in settings that people run.

`before` is the noise of commit 336f9dc in the same setting, computed there; `now` is computed. Its
sums and noise were floats, and rounding was not charged.
"""

import math
from typing import Any

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.mechanism.factorisation import norms

DELTA = 1e-6
# setting, what is compared, n, batch, rounds, epsilon, records of a person, before
_SAMPLED = (("main job", 16152, 64, 3785, 1.0, 1, 2.06861),
            ("main job, any 5 rows of a person", 16152, 64, 3785, 1.0, 5, None),
            ("Table 2, ijcnn1", 39992, 64, 9373, 0.1, 1, 11.3678),
            ("Table 2, ijcnn1", 39992, 64, 9373, 1.0, 1, 1.34254),
            ("Table 2, ijcnn1", 39992, 64, 9373, 10.0, 1, 0.493842))
_TREES = ((1024, 28.0233), (9373, 31.6146))  # leaves of group_oco's stream, noise of a node before
_WORST = (3000, 231.141)  # releases of active_groups' losses, Laplace scale over B / n before
_BANDS = 512


def rows() -> list[dict[str, Any]]:
    """A row a setting."""
    result = []
    for setting, n, batch, rounds, epsilon, people, before in _SAMPLED:
        query = jmm.Query(clip=Saddle(1.0, None), population=n,
                          sampling=jmm.Poisson(rate=batch / n))
        made = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=rounds), epsilon, DELTA,
                                              people=people)
        result.append(_row(setting, "noise multiplier", epsilon, before,
                           float(made.query.noise_multiplier.w)))
    times, before = _WORST
    index = jmm.accounting.calibrate_noise(jmm.mechanism.Selection(bound=1.0, sizes=(1000,),
                                                                   times=times), 1.0, DELTA)
    result.append(_row(f"worst group, active_groups, {times} rounds",
                       "deviation of noise on a group's loss, over B / n", 1.0,
                       math.sqrt(2) * before, math.pi / math.sqrt(6) * index.noise_multiplier))
    for leaves, before in _TREES:
        sums = jmm.accounting.calibrate_noise(jmm.mechanism.CorrelatedSums(clip=1.0, leaves=leaves,
                                                                           bands=_BANDS), 1.0,
                                              DELTA)
        most = max(t.bit_count() for t in range(1, leaves + 1))  # nodes in a prefix
        result.append(_row(f"group_oco, {leaves} leaves, {_BANDS} bands for a tree",
                           "largest deviation of a prefix's noise, in clip norms", 1.0,
                           before * math.sqrt(most),
                           sums.noise_multiplier * norms(leaves, _BANDS).prefix))
    return result


def _row(setting: str, what: str, epsilon: float, before: float | None,
         now: float) -> dict[str, Any]:
    return {"setting": setting, "noise": what, "epsilon": epsilon, "before": before, "now": now}
