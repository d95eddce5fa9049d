"""Tests of scripts are slow ones, but for those that hold a charge against an attack."""

import pathlib

HERE = pathlib.Path(__file__).parent
# lower bounds, fuzzed charges, planted bugs, and the charge of a release that stands in an example
QUICK = {"test_fuzz", "test_lower_bounds", "test_mutants", "test_spider", "test_table_attack"}


def pytest_collection_modifyitems(items):
    """Marks the tests of this folder."""
    for item in items:
        if item.path.parent == HERE and item.path.stem not in QUICK:
            item.add_marker("slow")
