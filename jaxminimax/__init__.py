"""Differentially private minimax optimisation, as pure functions on JAX."""

from jaxminimax import audit as audit
from jaxminimax import mechanism as mechanism
from jaxminimax import metrics as metrics
from jaxminimax import noise as noise
from jaxminimax import placement as placement
from jaxminimax import problems as problems
from jaxminimax import solvers as solvers
from jaxminimax import tables as tables
from jaxminimax import theory as theory
from jaxminimax.accounting import Ledger as Ledger
from jaxminimax.accounting import LedgerStatement as LedgerStatement
from jaxminimax.accounting import Profile as Profile
from jaxminimax.accounting import Statement as Statement
from jaxminimax.accounting import TuningStatement as TuningStatement
from jaxminimax.accounting import calibrate as calibrate
from jaxminimax.accounting import calibrate_iterations as calibrate_iterations
from jaxminimax.accounting import calibrate_noise as calibrate_noise
from jaxminimax.accounting import delta as delta
from jaxminimax.accounting import effective_noise_multiplier as effective_noise_multiplier
from jaxminimax.accounting import epsilon as epsilon
from jaxminimax.accounting import profile as profile
from jaxminimax.accounting import statement as statement
from jaxminimax.accounting import tuned_delta as tuned_delta
from jaxminimax.accounting import tuned_epsilon as tuned_epsilon
from jaxminimax.algorithms import *  # noqa: F403
from jaxminimax.algorithms import __all__ as _algorithms
from jaxminimax.algorithms import averaging as averaging
from jaxminimax.algorithms import schedules as schedules
from jaxminimax.algorithms.averaging import TAIL as TAIL
from jaxminimax.algorithms.averaging import UNIFORM as UNIFORM
from jaxminimax.algorithms.averaging import WEIGHTED as WEIGHTED
from jaxminimax.algorithms.averaging import Averaging as Averaging
from jaxminimax.base import VERSION as _VERSION
from jaxminimax.base import public_names as _public_names
from jaxminimax.base.types import Algorithm as Algorithm
from jaxminimax.base.types import GroupProblem as GroupProblem
from jaxminimax.base.types import OnlineOptimiser as OnlineOptimiser
from jaxminimax.base.types import Problem as Problem
from jaxminimax.base.types import Saddle as Saddle
from jaxminimax.base.types import SaddleOperator as SaddleOperator
from jaxminimax.base.types import pytree_dataclass as pytree_dataclass
from jaxminimax.base.types import saddle_operator as saddle_operator
from jaxminimax.base.types import with_strategy as with_strategy
from jaxminimax.checkup import Report as Report
from jaxminimax.checkup import check as check
from jaxminimax.drivers import Run as Run
from jaxminimax.drivers import Tuned as Tuned
from jaxminimax.drivers import fit as fit
from jaxminimax.drivers import run as run
from jaxminimax.drivers import stack as stack
from jaxminimax.drivers import sweep as sweep
from jaxminimax.drivers import tune as tune
from jaxminimax.gradients import ClippedSum as ClippedSum
from jaxminimax.gradients import clipped_sum as clipped_sum
from jaxminimax.mechanism import AdaptiveClip as AdaptiveClip
from jaxminimax.mechanism import CorrelatedSums as CorrelatedSums
from jaxminimax.mechanism import Difference as Difference
from jaxminimax.mechanism import Disjoint as Disjoint
from jaxminimax.mechanism import FixedSize as FixedSize
from jaxminimax.mechanism import Full as Full
from jaxminimax.mechanism import GroupGradients as GroupGradients
from jaxminimax.mechanism import GroupLosses as GroupLosses
from jaxminimax.mechanism import GroupSolution as GroupSolution
from jaxminimax.mechanism import Parallel as Parallel
from jaxminimax.mechanism import Poisson as Poisson
from jaxminimax.mechanism import Query as Query
from jaxminimax.mechanism import RecordLosses as RecordLosses
from jaxminimax.mechanism import Repeat as Repeat
from jaxminimax.mechanism import Resolvent as Resolvent
from jaxminimax.mechanism import Selection as Selection
from jaxminimax.mechanism import Sequence as Sequence
from jaxminimax.mechanism import Solution as Solution
from jaxminimax.mechanism import TreeSums as TreeSums
from jaxminimax.mechanism import Windows as Windows
from jaxminimax.mechanism import budget_split as budget_split
from jaxminimax.mechanism import planned_bands as planned_bands
from jaxminimax.mechanism.repetitions import Repetitions as Repetitions
from jaxminimax.noise import secret_key as secret_key
from jaxminimax.placement import HostData as HostData
from jaxminimax.placement import shard as shard
from jaxminimax.plans import plan as plan
from jaxminimax.problems import by_person as by_person
from jaxminimax.releases.sums import release as release
from jaxminimax.tables import Schema as Schema
from jaxminimax.tables import defaults as defaults

__version__ = _VERSION

# modules that belong to the face; the other folders are floors of the house
_MODULES = {"audit", "averaging", "mechanism", "metrics", "noise", "placement", "problems",
            "schedules", "solvers", "tables", *_algorithms}


def __dir__() -> list[str]:
    return _public_names(globals(), _MODULES)
