"""Every planted bug is found, by a detector that is silent without it."""

import pytest

from benchmarks import mutants

every_bug = pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)


@pytest.mark.slow
@every_bug
def test_a_planted_bug_fires_its_detector_and_nothing_else_does(mutant):
    sound, broken = mutants.check(mutant)
    assert not sound.fires, sound
    assert broken.fires, broken


def test_bugs_have_different_names_and_leave_nothing_behind():
    assert len({m.name for m in mutants.MUTANTS}) == len(mutants.MUTANTS)
    for mutant in mutants.MUTANTS:
        patch = mutant.plant()
        sound = getattr(patch.getter(), patch.attribute)
        with mutants.planted(mutant):
            assert getattr(patch.getter(), patch.attribute) is not sound
        assert getattr(patch.getter(), patch.attribute) is sound


def test_a_number_that_is_none_fires():
    assert mutants.Finding(float("nan"), 1.0).fires
    assert mutants.Finding(1.1, 1.0).fires
    assert not mutants.Finding(1.0, 1.0).fires


def test_the_table_says_what_was_caught():
    quiet, loud = mutants.Finding(0.5, 1.0), mutants.Finding(2.0, 1.0)
    for sound, broken, verdict in ((quiet, loud, "yes"), (quiet, quiet, "NO"), (loud, loud, "NO")):
        text = mutants.markdown([(mutants.MUTANTS[0], sound, broken)])
        assert text.splitlines()[-1].endswith(f"| {verdict} |")
