"""How much noise the worst group's losses need: Gumbel on an index, Gaussian, Laplace.

    python -m benchmarks.privacy.selection_noise [--epsilon 1] [--delta 1e-6]
        [--releases 10 30 300 3000]

Standard deviations over B / n, and over the root of the number of releases, of groups of one size.
Laplace noise is what all of them had: on all losses, or inside, with the index as post-processing.
"""

import math
import time
import warnings
from typing import Any

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import GroupLosses
from jaxminimax.mechanism import Selection

_GUMBEL = math.pi / math.sqrt(6)  # deviation of a Gumbel number


def deviations(times: int, epsilon: float, delta: float) -> tuple[float, float, float]:
    """Of noise on an index, Gaussian and Laplace, for that many releases."""
    how: dict[str, Any] = dict(bound=1.0, sizes=(1,), times=times)
    with warnings.catch_warnings():  # of a delta above 1 / n: the number of records is nothing here
        warnings.simplefilter("ignore", UserWarning)
        index, gaussian, laplace = (
            jmm.accounting.calibrate_noise(x, epsilon, delta) for x in (
                Selection(**how), GroupLosses(**how, noise="gaussian"),
                GroupLosses(**how, noise="laplace")))
    root = math.sqrt(times)
    return (_GUMBEL * index.noise_multiplier / root, gaussian.deviation() / root,
            laplace.deviation() / root)


def row(times: int, epsilon: float, delta: float) -> list[str]:
    """The deviations in words, how much less the index has, and the seconds."""
    began = time.process_time()
    result = deviations(times, epsilon, delta)
    return [str(times), *(f"{x:.3f}" for x in result), f"{result[2] / result[0]:.2f}",
            f"{time.process_time() - began:.1f}"]


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    p = report.Parser(__file__, __doc__)
    p.add_argument("--epsilon", type=float, default=1.0, help="target of all releases")
    p.add_argument("--delta", type=float, default=1e-6, help="target of all releases")
    p.add_argument("--releases", type=int, nargs="+", default=[10, 30, 300, 3000],
                   help="numbers of releases")
    args = p.parse_args(argv)
    rows = [row(times, args.epsilon, args.delta) for times in args.releases]
    print(report.table(["releases", "Gumbel, index", "Gaussian", "Laplace", "Laplace over Gumbel",
                        "processor seconds"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
