"""Drivers of whole runs: plans, runs, checkpoints, private searches, certificates."""

from jaxminimax.drivers.certificates import Certificate, certify
from jaxminimax.drivers.long_runs import fit
from jaxminimax.drivers.many_runs import stack, sweep
from jaxminimax.drivers.plans import Choice, plans
from jaxminimax.drivers.runs import Run, plan, round, run
from jaxminimax.drivers.tuning import Tuned, tune

__all__ = ["Certificate", "Choice", "Run", "Tuned", "certify", "fit", "plan", "plans", "round",
           "run", "stack", "sweep", "tune"]
