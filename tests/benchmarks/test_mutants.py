"""Every detector is silent, and fires when its planted bug is there."""

import math

import pytest

from benchmarks.privacy.mutants import __main__ as mutants
from benchmarks.privacy.mutants import grids, leaves, preparations

# the first bug of every detector's function, whatever its arguments: `tests/test_privacy_quick.py`
# tests noise, clips and charges of every kind of release; every night all bugs are planted
BUGS = {getattr(mutant.detector, "func", mutant.detector): mutant
        for mutant in reversed(mutants.MUTANTS)}
# every fifteenth detector with every change, and the one that rests on the last bits of a sum that
# is computed twice, with noise and without it; all of them every night
every_detector = pytest.mark.parametrize("mutant", [
    pytest.param(mutant, id=mutant.name, marks=pytest.mark.nightly
                 if k % 15 and mutant.detector is not grids.grids else pytest.mark.slow)
    for k, mutant in enumerate(BUGS.values())])


@every_detector
def test_a_planted_bug_fires_its_detector_and_nothing_else_does(mutant):
    sound, broken = mutants.check(mutant)
    assert not sound.fires, sound
    assert broken.fires, broken


@pytest.mark.parametrize("mutant", [
    # of several kinds of labels, which are released alike, one is enough with every change
    pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] * mutant.name.endswith(
        ("under the key of rounds", "several classes", "a number")))
    for mutant in mutants.MUTANTS
    if mutant.name.startswith(("second moments", "calibration", "moments"))
    or mutant.name == "ranges under the key of rounds"])
def test_releases_besides_the_gradients_are_charged_with_their_noise_and_clip(mutant):
    test_a_planted_bug_fires_its_detector_and_nothing_else_does(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [
    pytest.param(mutant, id=mutant.name) for mutant in mutants.MUTANTS
    if mutant.name in {bug[0] for bug in preparations.BUGS}])
def test_the_one_order_of_a_training_is_watched(mutant):
    test_a_planted_bug_fires_its_detector_and_nothing_else_does(mutant)


@pytest.mark.parametrize("mutant", [
    pytest.param(mutant, id=mutant.name) for mutant in mutants.MUTANTS
    if mutant.name in {bug[0] for bug in leaves.BUGS}])
def test_what_is_made_one_array_keeps_its_order_its_norm_and_its_rounding(mutant):
    test_a_planted_bug_fires_its_detector_and_nothing_else_does(mutant)


def test_bugs_have_different_names_and_leave_nothing_behind():
    assert len({m.name for m in mutants.MUTANTS}) == len(mutants.MUTANTS)
    for mutant in mutants.MUTANTS:
        patch = mutant.plant()
        sound = getattr(patch.getter(), patch.attribute)
        with mutants.planted(mutant):
            assert getattr(patch.getter(), patch.attribute) is not sound
        assert getattr(patch.getter(), patch.attribute) is sound


def test_a_detector_that_breaks_has_caught_nothing():
    assert mutants.Finding(1.1, 1.0).fires
    assert mutants.Finding(math.inf, 1.0).fires
    assert not mutants.Finding(1.0, 1.0).fires
    for broken in (mutants.Finding(math.nan, 1.0), mutants.Finding(1.0, math.nan)):
        with pytest.raises(ValueError, match="broken"):
            broken.fires  # noqa: B018


def test_most_bugs_are_no_factors_of_two():
    """A fifth or less: of noise, of a clip norm, of a rate."""
    parts = ("tenth", "twentieth", "256th", "fifth", "bfloat16", "short", "begun", "quarter")
    assert sum(any(part in m.name for part in parts) for m in mutants.MUTANTS) >= 15


def test_the_table_says_what_was_caught():
    quiet, big = mutants.Finding(0.5, 1.0), mutants.Finding(2.0, 1.0)
    refused = mutants.Finding(math.inf, 1.0, refused=True)
    for sound, broken, verdict in ((quiet, big, "yes"), (quiet, quiet, "NO"), (big, big, "NO"),
                                   (quiet, refused, "refused when traced"), (big, refused, "NO")):
        text = mutants.markdown([(mutants.MUTANTS[0], sound, broken)])
        assert text.splitlines()[-1].endswith(f"| {verdict} |")
