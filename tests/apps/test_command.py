"""`python -m jaxminimax`: what it prints is what the library computes."""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tomllib
import typing

import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.__main__ import main
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.accounting.statement_text import RELATIONS
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.apps import accountant, commands, planner
from jaxminimax.base import own_files
from tests.helpers.words import one_line

ROOT = pathlib.Path(__file__).parents[2]

CALIBRATE = ["calibrate", "sgda", "--epsilon", "1", "--delta", "1e-5", "--n", "5000",
             "--rounds", "50", "--json"]

GIVEN = ["--noise-multiplier", "5", "--delta", "1e-5", "--n", "5000", "--batch-size", "100",
         "--rounds", "50"]


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


def test_calibrate_and_epsilon_are_inverse(capsys):
    made = printed(capsys, *CALIBRATE, "--batch-size", "100")
    assert set(made) >= {"noise_multiplier", "epsilon", "delta", "neighbours", "accountant"}
    assert 0.999 < made["epsilon"] <= 1.0
    z = made["noise_multiplier"]
    assert made["noise_multiplier_w"] == made["noise_multiplier_v"] == pytest.approx(2**0.5 * z)
    back = printed(capsys, "epsilon", "sgda", "--noise-multiplier", str(z), *GIVEN[2:], "--json")
    assert back["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)


@pytest.mark.usefixtures("real_noise")
def test_without_an_algorithm_a_round_is_one_release_of_one_clipped_sum(capsys):
    stated = printed(capsys, "epsilon", *GIVEN, "--json")
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None),
                      sampling=jmm.Poisson(rate=0.02), population=5000)
    assert stated["epsilon"] == jmm.epsilon(jmm.Repeat(query=query, times=50), 1e-5)
    assert (stated["algorithm"], stated["noise_multiplier"]) == (None, 5.0)
    assert printed(capsys, "epsilon", "sgda", *GIVEN, "--json")["epsilon"] == pytest.approx(
        stated["epsilon"], rel=1e-9)
    full = [x for x in CALIBRATE if x != "sgda"]
    assert printed(capsys, *full)["noise_multiplier"] == pytest.approx(
        jmm.accounting.calibrate_noise(jmm.Repeat(query=jmm.Query(
            clip=Saddle(1.0, None), population=5000), times=50), 1.0, 1e-5).multiplier())


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(accountant.NAMES)))
def test_what_more_than_these_numbers_describes_is_refused_with_the_way_out(name, capsys):
    assert main(["explain", name, *GIVEN]) == 2
    stated = capsys.readouterr()
    assert "jmm.NAME.mechanism(hyper)" in stated.err
    assert not stated.out


@pytest.mark.parametrize("name", accountant.NAMES)
def test_an_algorithm_is_charged_as_it_describes_itself(name, capsys):
    module, given = ALGORITHMS[name], [*GIVEN, "--json"]
    if name == "gda":  # of all records
        given = [x for k, x in enumerate(given) if "--batch-size" not in (x, given[k - 1])]
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(5 * 2**0.5, 5 * 2**0.5),
                      sampling=jmm.Full() if name == "gda" else jmm.Poisson(rate=0.02),
                      population=5000)
    stated = printed(capsys, "epsilon", name, *given)
    assert stated["epsilon"] == pytest.approx(
        jmm.epsilon(module.mechanism(module.example(query, 50)), 1e-5), rel=1e-9)


def test_extragradient_pays_for_two_releases_a_round(capsys):
    twice = printed(capsys, "calibrate", "extragradient", *CALIBRATE[2:], "--batch-size", "100")
    doubled = ["100" if x == "50" else x for x in CALIBRATE]
    assert printed(capsys, *doubled, "--batch-size", "100")["noise_multiplier"] == (
        twice["noise_multiplier"])
    assert main(["explain", "extragradient", *GIVEN]) == 0
    assert "100 of 100 allowed" in capsys.readouterr().out


def test_full_batches_and_the_other_relation(capsys):
    replace = printed(capsys, *CALIBRATE)
    add = printed(capsys, *CALIBRATE, "--neighbours", "add_or_remove_one")
    assert replace["noise_multiplier"] == pytest.approx(2 * add["noise_multiplier"], rel=1e-3)
    assert printed(capsys, *CALIBRATE, "--sampling", "full") == replace


def test_an_early_stop_is_counted_for_those_who_look_and_for_those_who_do_not(capsys):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(50.0, None), population=5000)
    run = jmm.Repeat(query=query, times=50)
    given = ["--noise-multiplier", "50", "--delta", "1e-5", "--n", "5000", "--rounds", "50"]
    stopped = printed(capsys, "epsilon", *given, "--spent", "10", "--json")
    assert stopped["epsilon_spent_if_fixed"] == pytest.approx(jmm.epsilon(run, 1e-5, spent=10))
    assert stopped["epsilon"] == pytest.approx(jmm.epsilon(run, 1e-5))  # whatever ended the run
    assert main(["epsilon", *given, "--spent", "0"]) == 2
    assert "--spent" in capsys.readouterr().err


@pytest.mark.parametrize(("extra", "message"), [
    (["--batch-size", "6000"], "--batch-size must lie in"),
    (["--batch-size", "100", "--sampling", "full"], "--batch-size goes with"),
    (["--batch-size", "100", "--epsilon", "-1"], "epsilon must lie in"),
    (["--batch-size", "100", "--epsilon", "nan"], "epsilon must lie in"),
    (["--batch-size", "100", "--delta", "0"], "delta must lie in"),
    (["--batch-size", "100", "--rounds", "0"], "--rounds"),
    (["--batch-size", "100", "--n", "-3"], "--n must"),
    (["--sampling", "fixed"], "--sampling fixed needs --batch-size"),
    (["--sampling", "poisson"], "needs --batch-size, the expected batch size"),
    (["--sampling", "disjoint", "--batch-size", "1.5"], "--batch-size must be an integer"),
])
def test_a_bad_argument_ends_with_its_name_and_status_2(capsys, extra, message):
    assert main([*CALIBRATE, *extra]) == 2
    stated = capsys.readouterr()
    assert message in stated.err
    assert not stated.out


@pytest.mark.parametrize(("sampling", "how"), [
    ("fixed", jmm.FixedSize(batch=100)),
    ("with_replacement", jmm.FixedSize(batch=100, replacement=True)),
    ("disjoint", jmm.Disjoint(batch=100)),
])
def test_every_sampler_is_charged_as_itself(capsys, sampling, how):
    stated = printed(capsys, "epsilon", *GIVEN, "--sampling", sampling, "--json")
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None), sampling=how,
                      population=5000)
    assert stated["epsilon"] == jmm.epsilon(jmm.Repeat(query=query, times=50), 1e-5)


@pytest.mark.slow
def test_explain_says_what_epsilon_computes(capsys):
    given = ["sgda", *GIVEN, "--sampling", "disjoint"]
    for spent in ([], ["--spent", "10"]):
        number = printed(capsys, "epsilon", *given, *spent, "--json")["epsilon"]
        stated = printed(capsys, "explain", *given, *spent, "--json")
        assert stated["epsilon"] == number
        assert main(["explain", *given, *spent]) == 0
        words = one_line(capsys.readouterr().out)
        assert words.startswith(
            f"The releases of this run satisfy ({rounded_up(number)}, 1e-05)-differential privacy")
        assert f"{stated['spent']} of 50 allowed" in words
        assert "disjoint batches of 100" in words
    assert stated["spent"] == 10
    stopped = printed(capsys, "epsilon", *given, "--spent", "10", "--json")
    for name in ("epsilon_if_stopped_by_looking", "epsilon_spent_if_fixed"):
        assert stopped[name] == stated[name] >= stated["epsilon_spent_if_fixed"]


def test_a_delta_above_one_in_n_is_told_once(capsys):
    assert main(["calibrate", "gda", "--epsilon", "1", "--delta", "0.01", "--n", "500",
                 "--rounds", "5"]) == 0
    assert capsys.readouterr().err.count("above 1/n") == 1


@pytest.mark.slow
def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxminimax", "calibrate", "gda", "--epsilon", "1", "--delta",
         "1e-6", "--n", "1000", "--rounds", "100"],
        check=True, capture_output=True, text=True)
    assert "84.5" in done.stdout  # 84.49 of real noise, and what rounding costs


# --- what it says of itself ---


def parsers():
    """Of all commands, by name; that of their choice by the empty one."""
    made = commands.parser_of("what it is for")
    (choice,) = (x for x in made._actions if isinstance(x, argparse._SubParsersAction))
    assert list(choice.choices) == list(commands.COMMANDS) == [
        "train", "predict", "check", "ledger", "epsilon", "calibrate", "explain", "plan"]
    return {"": made, **choice.choices}


def test_every_option_of_every_command_has_a_help_text(capsys):
    for name, command in parsers().items():
        assert command.description
        for action in command._actions:
            assert action.help, f"{name} {action.option_strings or action.dest}"
            assert action.help != argparse.SUPPRESS
    with pytest.raises(SystemExit):
        main(["epsilon", "--help"])
    assert "example:" in capsys.readouterr().out


def test_no_option_may_be_cut_short(capsys):
    """Of every command, by its parser; and what a user reads then."""
    assert not any(parser.allow_abbrev for parser in parsers().values())
    for name in ("--batch", "--noise", "--round"):
        with pytest.raises(SystemExit) as end:
            main(["epsilon", *GIVEN, name, "3"])
        assert end.value.code == 2
        assert f"unrecognized arguments: {name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["epsilon", "calibrate", "explain"])
def test_the_example_of_a_command_runs_as_printed(capsys, name):
    line = parsers()[name].epilog.splitlines()[-1]
    words = line.removeprefix("  python -m jaxminimax ").split()
    assert 0 < printed(capsys, *words, "--json")["epsilon"] <= 1.0


# --- several records and plain words ---


def test_people_are_counted_by_every_command(capsys):
    given = ["--noise-multiplier", "50", "--n", "5000", "--rounds", "20", "--people", "3",
             "--delta", "1e-6"]
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(50.0, None), population=5000)
    run = jmm.Repeat(query=query, times=20)
    expected = jmm.epsilon(run, 1e-6, people=3)
    for command in ("epsilon", "explain"):
        stated = printed(capsys, command, *given, "--json")
        assert (stated["epsilon"], stated["people"]) == (expected, 3)
    assert stated["attack_bounds"]["advantage"] == jmm.profile(run, people=3).advantage
    made = printed(capsys, "calibrate", "--epsilon", "1", *given[2:], "--json")
    assert made["noise_multiplier"] == pytest.approx(3 * 4.224679 * 2 * 20**0.5, rel=2e-3)
    assert main(["epsilon", *given, "--people", "0"]) == 2
    assert "people must be an integer" in capsys.readouterr().err


def test_an_epsilon_that_is_not_proven_has_one_code_and_its_limit(capsys):
    given = ["epsilon", "--noise-multiplier", "0.05", "--delta", "1e-6", "--n", "1000", "--rounds",
             "1"]
    stated = printed(capsys, *given, "--json")
    assert (stated["epsilon"], stated["epsilon_spent_if_fixed"]) == ("no guarantee", None)
    assert main(given) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"epsilon above what is proven, {stated['proven_up_to']:.4g} at most" in words
    assert main(["calibrate", "--epsilon", "1", "--delta", "1e-40", "--n", "1000", "--rounds",
                 "10"]) == 2
    assert "Choose a larger delta, or fewer releases" in capsys.readouterr().err


def test_explain_says_how_many_of_the_allowed_releases_were_made(capsys):
    given = ["explain", "--noise-multiplier", "50", "--n", "5000", "--rounds", "20", "--delta",
             "1e-6"]
    assert main([*given, "--spent", "8"]) == 0
    assert "8 of 20 allowed" in one_line(capsys.readouterr().out)


# --- plans ---

PLANS = {
    "gda": {"population": 1000, "bound": 1.0, "smooth": 1.0, "modulus": 0.5},
    "optimistic": {"population": 1000, "dim": 4, "bound": 1.0, "smooth": 1.0, "diameter": 2.0,
                   "proved": True},
    "recursive": {"population": 4096, "dim": 4, "bound": 1.0, "smooth": 1.0, "diameter": 2.0,
                  "rounds": 3},
    "ftrl": {"population": 1000, "dim": 4, "bound": 1.0, "diameter": 2.0},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_that_of_the_library(capsys, name):
    numbers, words = PLANS[name], []
    for option, value in numbers.items():
        words += [planner.flag_of(option), *([] if value is True else [str(value)])]
    target = {"epsilon": 1.0, "delta": 1e-6}
    stated = printed(capsys, "plan", name, "--epsilon", "1", "--delta", "1e-6", *words, "--json")
    made = jmm.plan(ALGORITHMS[name], **target, **numbers)
    assert stated["guarantee"] == made.guarantee
    assert (stated["vacuous"], stated["why"]) == (made.vacuous, list(made.why))
    assert stated["epsilon"] == jmm.epsilon(ALGORITHMS[name].mechanism(made.hyper), 1e-6) <= 1
    query = made.hyper.query
    noise = getattr(query, "noise_multiplier", None)
    if isinstance(noise, float):
        assert stated["hyper"]["query"]["noise_multiplier"] == noise
    if isinstance(noise, Saddle):
        assert stated["hyper"]["query"]["noise_multiplier"] == noise._asdict()


@pytest.mark.slow
def test_without_an_algorithm_all_plans_stand_side_by_side(capsys):
    words = ("plan", "--epsilon", "1", "--delta", "1e-6", "--dim", "4", "--bound", "1")
    game = (*words, "--population", "1000", "--diameter", "2")
    rows = printed(capsys, *game, "--json")["plans"]
    made = jmm.plans(epsilon=1.0, delta=1e-6, population=1000, dim=4, bound=1.0, diameter=2.0)
    assert [(x["plan"], x["guarantee"]) for x in rows] == [
        (x.name, x.plan and x.plan.guarantee) for x in made]
    assert main(list(game)) == 0
    assert "Bounds on the strong gap on the population" in capsys.readouterr().out
    assert {x["why"] for x in rows if x["algorithm"] == "group_sgd"} == {"give problem=, sizes="}


def test_a_plan_takes_every_number_of_an_algorithm_and_no_other(capsys):
    given = ["plan", "gda", "--epsilon", "1", "--delta", "1e-6", "--population", "1000"]
    assert main(given) == 2
    assert "Its public numbers are population, bound" in capsys.readouterr().err
    assert main([*given, "--kappa", "3"]) == 2
    assert "--kappa is no number of gda" in capsys.readouterr().err
    for name in ("group_sgd", "balanced_groups"):
        assert main(["plan", name, *given[2:]]) == 2
        assert "Of groups ask jmm.plan(" in capsys.readouterr().err


READ = {frozenset({int}): int, frozenset({float}): float, frozenset({str}): str,
        frozenset({int, Saddle}): int,
        frozenset({int, str}): planner.NUMBERS["rounds"][0]}  # by what a plan's argument may be


def test_every_number_that_a_word_can_stand_for_is_an_option_and_read_as_such():
    for name, algorithm in planner._PLANNED.items():
        hints = {x: bool if hint is bool else READ.get(
                     frozenset(typing.get_args(hint) or [hint]) - {type(None)}) for x, hint in
                 typing.get_type_hints(algorithm.plan).items()}
        # `smooth_l1` takes a `dim` of each player
        for x in set(hints) - {"epsilon", "delta", "neighbours", "smooth_l1"}:
            assert hints[x] is None or planner.NUMBERS[x][0] is hints[x], (name, x)


# --- as a program ---


@pytest.mark.slow
def test_help_is_the_same_without_docstrings():
    """`python -OO` strips them, and assertions."""
    words = ("import sys; from jaxminimax.apps.commands import parser_of; p = parser_of(None); "
             "print(sys.flags.optimize, p.format_help(), *(x.format_help() for x in "
             "p._actions[1].choices.values()))")
    plain, stripped = (subprocess.run(
        [sys.executable, *flags, "-c", words], check=True, text=True, capture_output=True,
        env=os.environ | {"COLUMNS": "80"}).stdout for flags in ((), ("-OO",)))
    assert (plain[0], stripped[0]) == ("0", "2")
    assert plain[1:] == stripped[1:]
    assert "--public-bound" in plain


def test_the_console_script_is_the_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["scripts"]["jaxminimax"].split(":")
    assert getattr(importlib.import_module(module), name) is main


def test_a_process_keeps_programs_and_a_call_does_not(monkeypatch, capsys, tmp_path):
    kept = []
    monkeypatch.setattr(own_files, "keep_programs", lambda: kept.append(True))
    words = ["train", "t.csv", "--schema", str(tmp_path / "s"), "--epsilon", "1", "--delta", "1e-6"]
    assert main(words) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert kept == []
    monkeypatch.setattr(sys, "argv", ["jaxminimax", *words])
    assert main() == 2
    assert kept == [True]


def test_explain_speaks_plainly(capsys):
    given = ["explain", "--noise-multiplier", "50", "--n", "5000", "--rounds", "20", "--delta",
             "1e-6", "--unit", "one visit"]
    assert main(given) == 0
    words = one_line(capsys.readouterr().out)
    for part in ("unit of privacy one visit", RELATIONS["replace_one"],
                 "trusted curator", "What the numbers mean:", "Guessing is right in 50 %",
                 "User: One record is 'one visit'", "Technical annex:"):
        assert part in words
    assert main([*given, "--people", "4"]) == 0
    assert "No person contributes more than 4 records" in one_line(capsys.readouterr().out)
