"""Which cases of a test run with every change."""

import pytest


def rest_nightly(cases, often: int) -> list:
    """Parameters of a test: the first `often` run with every change, all of them every night."""
    return [*cases[:often], *(pytest.param(
        *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for case in cases[often:])]
