"""The accountant: the privacy loss of a mechanism, and statements of it; on the host, in float64.

It reads descriptions of mechanisms and nothing else. `epsilon`, `delta` and `profile` answer for a
description, `statement` for a run, `calibrate` and its kin find noise, and a `Ledger` adds up runs.
"""

from jaxminimax.accounting.attack_bounds import Profile, profile
from jaxminimax.accounting.calibration import (
    calibrate,
    calibrate_iterations,
    calibrate_noise,
    calibrate_shares,
)
from jaxminimax.accounting.epsilon_delta import delta, effective_noise_multiplier, epsilon
from jaxminimax.accounting.ledger import Ledger
from jaxminimax.accounting.statement_of_run import statement
from jaxminimax.accounting.statement_text import LedgerStatement, Statement, TuningStatement
from jaxminimax.accounting.tuning import tuned_delta, tuned_epsilon

__all__ = ["Ledger", "LedgerStatement", "Profile", "Statement", "TuningStatement", "calibrate",
           "calibrate_iterations", "calibrate_noise", "calibrate_shares", "delta",
           "effective_noise_multiplier", "epsilon", "profile", "statement", "tuned_delta",
           "tuned_epsilon"]
