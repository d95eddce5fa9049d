"""Drivers of whole runs: plans, single runs, many, long ones with checkpoints, private searches."""

from jaxminimax.drivers.long_runs import fit
from jaxminimax.drivers.many_runs import stack, sweep
from jaxminimax.drivers.runs import Run, plan, round, run
from jaxminimax.drivers.tuning import Tuned, tune

__all__ = ["Run", "Tuned", "fit", "plan", "round", "run", "stack", "sweep", "tune"]
