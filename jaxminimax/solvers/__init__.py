"""Solvers of regularised problems with certified solutions; `groups` has solvers for groups."""

from jaxminimax.solvers import groups as groups
from jaxminimax.solvers.saddle import *
