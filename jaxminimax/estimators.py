"""Estimators with scikit-learn's conventions: the public names of `jaxminimax.apps.estimators`."""

from jaxminimax.apps import estimators as _estimators
from jaxminimax.apps.estimators import *  # noqa: F403

__all__ = _estimators.__all__


def __dir__() -> list[str]:
    return __all__
