"""Saddle problems: a loss, a projection and, where it exists, the exact solution."""

from jaxminimax.base.identity import People as People
from jaxminimax.problems._auc import *
from jaxminimax.problems._fair import *
from jaxminimax.problems._games import *
from jaxminimax.problems._groups import *
from jaxminimax.problems._held_out import *
from jaxminimax.problems._ranking import *
from jaxminimax.problems._robust import *
from jaxminimax.problems._vi import *
