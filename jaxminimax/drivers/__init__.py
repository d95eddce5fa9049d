"""Whole runs of an algorithm."""

from jaxminimax.drivers.long_runs import Fit as Fit
from jaxminimax.drivers.long_runs import fit as fit
from jaxminimax.drivers.scan import run as run
from jaxminimax.drivers.scan import stack as stack
from jaxminimax.drivers.scan import sweep as sweep
