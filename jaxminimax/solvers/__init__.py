"""Solvers of regularised problems with certified solutions; `groups` has solvers for groups."""

from jaxminimax.base import public_names as _public_names
from jaxminimax.solvers import groups as groups
from jaxminimax.solvers.saddle import *


def __dir__() -> list[str]:
    return _public_names(globals(), modules=["groups"])
