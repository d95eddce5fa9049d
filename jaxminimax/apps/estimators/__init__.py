"""Estimators with scikit-learn's conventions; needs `pip install 'jaxminimax[sklearn]'`.

    model = PrivateAUCClassifier(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0)).fit(X, y)
    model.predict_proba(X), model.coef_, model.statement_

Every `fit` is a release of its own: what a cross-validation costs is the sum over its folds.
Parameters are public: choosing them by scores on the same records is not in the statement.
"""

import importlib as _importlib

try:
    _importlib.import_module("sklearn.base")  # one clear error for all modules below
except ImportError as error:
    raise ImportError("jaxminimax.estimators needs scikit-learn: pip install "
                      "'jaxminimax[sklearn]'") from error

from jaxminimax.apps.estimators.models import (
    PrivateAUCClassifier,
    PrivateClassifier,
    PrivateFairClassifier,
    PrivateRegressor,
    PrivateWorstGroupClassifier,
    PrivateWorstGroupRegressor,
)

__all__ = ["PrivateAUCClassifier", "PrivateClassifier", "PrivateFairClassifier",
           "PrivateRegressor", "PrivateWorstGroupClassifier", "PrivateWorstGroupRegressor"]


def __dir__() -> list[str]:
    return __all__
