"""Drivers of whole runs: plans, single runs, many, long ones with checkpoints, private searches."""

from jaxminimax.base import public_names as _public_names
from jaxminimax.drivers.long_runs import fit as fit
from jaxminimax.drivers.many_runs import stack as stack
from jaxminimax.drivers.many_runs import sweep as sweep
from jaxminimax.drivers.runs import Run as Run
from jaxminimax.drivers.runs import plan as plan
from jaxminimax.drivers.runs import run as run
from jaxminimax.drivers.tuning import Tuned as Tuned
from jaxminimax.drivers.tuning import tune as tune


def __dir__() -> list[str]:
    return _public_names(globals())
