"""The names of `jaxminimax`, loaded when the first one is asked for."""

import functools
from typing import Any

from jaxminimax import (
    accounting,
    algorithms,
    audit,
    mechanism,
    metrics,
    noise,
    placement,
    problems,
    solvers,
    tables,
    types,
)
from jaxminimax.accounting import calibrate, delta, epsilon, profile, statement
from jaxminimax.algorithms import *  # noqa: F403
from jaxminimax.algorithms import descent as averaging
from jaxminimax.algorithms import planning as schedules
from jaxminimax.base import public_names
from jaxminimax.base.types import GroupProblem, Problem, Saddle, saddle_operator
from jaxminimax.checkup import check
from jaxminimax.drivers import certify, fit, plan, plans, round, run, stack, sweep, tune
from jaxminimax.drivers.private_gradient import private_gradient
from jaxminimax.gradients import clipped_sum
from jaxminimax.mechanism import (
    AdaptiveClip,
    Disjoint,
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    Parallel,
    Poisson,
    Query,
    Repeat,
    Sequence,
)
from jaxminimax.releases.sums import release

# the whole interface at the top level; more stands in the modules that are listed first
__all__ = ["AdaptiveClip", "Disjoint", "FixedSize", "Full", "GroupGradients", "GroupLosses",
           "GroupProblem", "Parallel", "Poisson", "Problem", "Query", "Repeat", "Saddle",
           "Sequence", "accounting", "audit", "averaging", "calibrate", "certify", "check",
           "clipped_sum", "delta", "epsilon", "fit", "mechanism", "metrics", "noise", "placement",
           "plan", "plans", "private_gradient", "problems", "profile", "release", "round", "run",
           "saddle_operator", "schedules", "solvers", "stack", "statement", "sweep", "tables",
           "tune", "types"]
__all__ += algorithms.__all__

# tab completion shows public names alone
_listed: list[Any] = [accounting, algorithms, *algorithms.ALGORITHMS.values(), audit, averaging,
                      mechanism, metrics, noise, placement, problems, schedules, solvers,
                      solvers.groups, types]
for _module in _listed:
    _module.__dir__ = functools.partial(
        public_names, vars(_module), modules=["groups"] if _module is solvers else [])
