"""The names of `jaxminimax`, loaded when the first one is asked for."""

import warnings
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
from jaxminimax.base.types import GroupProblem, Problem, Saddle, saddle_operator
from jaxminimax.checkup import check
from jaxminimax.drivers import certify, fit, plan, plans, round, run, stack, sweep, tune
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
           "plan", "plans", "problems", "profile", "release", "round", "run", "saddle_operator",
           "schedules", "solvers", "stack", "statement", "sweep", "tables", "tune", "types"]
__all__ += algorithms.__all__

# names that stood at the top level until 0.2, by the module that has them; they go in 0.3
MOVED = {name: module for module, names in {
    "accounting": "Ledger LedgerStatement Profile Statement TuningStatement calibrate_iterations "
                  "calibrate_noise effective_noise_multiplier tuned_delta tuned_epsilon",
    "averaging": "Averaging TAIL UNIFORM WEIGHTED",
    "mechanism": "CorrelatedSums Difference GroupSolution RecordLosses Repetitions Resolvent "
                 "Selection Solution TreeSums Windows budget_split planned_bands",
    "noise": "secret_key",
    "placement": "HostData shard",
    "problems": "by_person",
    "tables": "Schema defaults",
    "types": "Algorithm ClippedSum OnlineOptimiser Report Run SaddleOperator Tuned "
             "pytree_dataclass with_strategy",
}.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Finds a name that has moved, and warns where to."""
    if name not in MOVED:
        raise AttributeError(f"module 'jaxminimax' has no attribute {name!r}")
    warnings.warn(f"jaxminimax.{name} is jaxminimax.{MOVED[name]}.{name} since 0.2, and the old "
                  "name goes in 0.3.", DeprecationWarning, stacklevel=3)
    return getattr(globals()[MOVED[name]], name)


def __dir__() -> list[str]:
    return sorted(__all__)
