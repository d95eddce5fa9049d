"""How far a record moves the odds of a released index, against what is charged."""

import dataclasses
from typing import Any

import numpy as np

from jaxminimax.audit._bound import clopper_pearson
from jaxminimax.audit._signal import Signal, charged_signal


def index_signal(one: Any, two: Any, mechanism: Any, confidence: float = 0.999) -> Signal:
    """The largest change of an index's log odds, from how often each came up on two data sets.

    `Selection` promises that no record changes the odds of any index by more than e^t, whatever
    the scores, t = 1 / its multiplier as charged. The index, and in which of the data sets it comes
    up more often, are chosen by the same counts: the bounds are for all of them together.

    Args:
      one: indices released in runs on one data set, `[runs]`; one release each.
      two: on the other.
      mechanism: the `Selection`, of any number of releases.
      confidence: of each bound.

    Examples:
        >>> chosen = jmm.mechanism.Selection(bound=1.0, sizes=(50, 50), noise_multiplier=2.0)
        >>> rng = np.random.default_rng(0)
        >>> one, two = rng.integers(0, 2, (2, 1000))  # indices of 1,000 runs on either data set
        >>> jmm.audit.index_signal(one, two, chosen).violated
        False
    """
    one, two = (np.asarray(x).ravel() for x in (one, two))
    known = np.union1d(one, two)
    error = (1 - confidence) / (4 * max(len(known), 2))
    hits = [np.array([np.sum(x == i) for i in known]) for x in (one, two)]

    def odds(p: np.ndarray) -> np.ndarray:
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return np.log(p) - np.log1p(-p)

    bounds = [[odds(b) for b in clopper_pearson(h, len(x), error)]
              for h, x in zip(hits, (one, two), strict=True)]
    middle = [odds(h / len(x)) for h, x in zip(hits, (one, two), strict=True)]
    low, value, high = (np.concatenate([a, b]) for a, b in (
        (bounds[0][0] - bounds[1][1], bounds[1][0] - bounds[0][1]),
        (middle[0] - middle[1], middle[1] - middle[0]),
        (bounds[0][1] - bounds[1][0], bounds[1][1] - bounds[0][0])))
    best = int(np.argmax(low))
    charged = charged_signal(dataclasses.replace(mechanism, times=1), law="gumbel")
    return Signal(float(value[best]), max(float(low[best]), 0.0), float(high[best]), charged, 0.0,
                  1.0, 0.0, "gumbel", confidence, min(len(one), len(two)))
