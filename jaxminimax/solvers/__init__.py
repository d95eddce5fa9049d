"""Solvers of regularised problems with certified solutions; `groups` has solvers for groups."""

from jaxminimax.base import public_names as _public_names
from jaxminimax.solvers import groups as groups
from jaxminimax.solvers.saddle import Certified as Certified
from jaxminimax.solvers.saddle import Regularised as Regularised
from jaxminimax.solvers.saddle import certify as certify
from jaxminimax.solvers.saddle import certifying_steps as certifying_steps
from jaxminimax.solvers.saddle import extrapolation_bound as extrapolation_bound
from jaxminimax.solvers.saddle import extrapolation_steps as extrapolation_steps
from jaxminimax.solvers.saddle import near_linear as near_linear
from jaxminimax.solvers.saddle import operator_extrapolation as operator_extrapolation
from jaxminimax.solvers.saddle import variance_reduced as variance_reduced


def __dir__() -> list[str]:
    return _public_names(globals(), modules=["groups"])
