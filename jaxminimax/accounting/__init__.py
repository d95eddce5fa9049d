"""The accountant: host only, float64, reads descriptions of mechanisms and nothing else."""

from jaxminimax.accounting._answers import delta, profile
from jaxminimax.accounting._calibrate import calibrate, calibrate_iterations, calibrate_noise
from jaxminimax.accounting._entries import RunMark as RunMark
from jaxminimax.accounting._entry import Entry as Entry
from jaxminimax.accounting._epsilon import effective_noise_multiplier, epsilon
from jaxminimax.accounting._ledger import Ledger
from jaxminimax.accounting._ledger_statement import LedgerStatement
from jaxminimax.accounting._profile import Profile
from jaxminimax.accounting._statement import Statement, statement
from jaxminimax.accounting._tuning import tuned_delta, tuned_epsilon
from jaxminimax.accounting._tuning_noise import Target as Target
from jaxminimax.accounting._tuning_noise import calibrate_search as calibrate_search
from jaxminimax.accounting._tuning_statement import TuningStatement
from jaxminimax.accounting._tuning_statement import tuning_statement as tuning_statement
from jaxminimax.base import public_names as _public_names

__all__ = [
    "Ledger",
    "LedgerStatement",
    "Profile",
    "Statement",
    "TuningStatement",
    "calibrate",
    "calibrate_iterations",
    "calibrate_noise",
    "delta",
    "effective_noise_multiplier",
    "epsilon",
    "profile",
    "statement",
    "tuned_delta",
    "tuned_epsilon",
]


def __dir__() -> list[str]:
    return _public_names(globals())
