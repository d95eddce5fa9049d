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
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.apps import commands, options
from jaxminimax.base import own_files
from tests.helpers.words import one_line

ROOT = pathlib.Path(__file__).parents[2]

CALIBRATE = ["calibrate", "sgda", "--epsilon", "1", "--delta", "1e-5", "--population", "5000",
             "--iterations", "50", "--json"]

GIVEN = ["--effective-noise-multiplier", "5", "--delta", "1e-5", "--population", "5000", "--batch",
         "100", "--iterations", "50"]


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


def test_calibrate_and_epsilon_are_inverse(capsys):
    made = printed(capsys, *CALIBRATE, "--batch", "100")
    assert set(made) >= {"noise_multiplier", "effective_noise_multiplier", "epsilon", "delta",
                         "neighbours", "accountant", "event"}
    assert 0.999 < made["epsilon"] <= 1.0
    z = made["effective_noise_multiplier"]
    assert made["noise_multiplier"]["w"] == pytest.approx(2**0.5 * z)
    assert "PoissonSampledDpEvent" in made["event"]
    back = printed(capsys, "epsilon", "sgda", "--effective-noise-multiplier", str(z), "--delta",
                   "1e-5", "--population", "5000", "--batch", "100", "--iterations", "50", "--json")
    assert back["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)


@pytest.mark.usefixtures("real_noise")
@pytest.mark.parametrize(("name", "more"), [
    ("ftrl", []), ("group_oco", []), ("phased_erm", ["--group-sizes", "90", "70"])])
def test_what_reads_a_record_once_is_calibrated_and_charged(capsys, name, more):
    where = ["--delta", "1e-6", "--iterations", "6", *more, "--json"]
    made = printed(capsys, "calibrate", name, "--epsilon", "1", *where)
    assert made["epsilon"] == pytest.approx(1.0, rel=1e-3)
    z, laplace = made["effective_noise_multiplier"], made["losses_noise_multiplier"]
    factor = 1.0 if name == "phased_erm" else 2 * 3**0.5  # 6 leaves: 3 nodes
    assert z == pytest.approx(factor * 4.224679, rel=1e-6)
    assert (laplace is not None) == (name == "group_oco")
    noise = ["--effective-noise-multiplier", str(z)]
    noise += [] if laplace is None else ["--laplace-noise-multiplier", str(laplace)]
    back = printed(capsys, "epsilon", name, *noise, *where)
    assert back["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)
    one = printed(capsys, "epsilon", name, *noise, *where, "--spent", "1")
    assert one["epsilon"] == pytest.approx(back["epsilon"], rel=1e-3)
    stated = printed(capsys, "explain", name, *noise, *where)
    assert stated["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)


@pytest.mark.parametrize(("arguments", "message"), [
    (["ftrl", "--population", "9"], "leave out --population"),
    (["ftrl", "--group-sizes", "9"], "leave out --group-sizes"),
    (["phased_erm"], "needs --group-sizes"),
    (["group_oco", "--laplace", "0.2"], "leave out --laplace")])
def test_what_reads_a_record_once_refuses_the_rest(arguments, message, capsys):
    name, *more = arguments
    assert main(["calibrate", name, "--epsilon", "1", "--delta", "1e-6", "--iterations", "6",
                 *more]) == 2
    assert message in capsys.readouterr().err
    if name == "ftrl":
        assert main(["epsilon", name, "--effective-noise-multiplier", "3", "--delta", "1e-6",
                     "--iterations", "6", "--laplace-noise-multiplier", "1"]) == 2
        assert "leave out --laplace-noise-multiplier" in capsys.readouterr().err


def test_one_joint_clip_costs_as_much_as_one_player(capsys):
    two = printed(capsys, *CALIBRATE, "--sampling", "full")
    one = printed(capsys, *CALIBRATE, "--sampling", "full", "--joint-clip")
    assert one["effective_noise_multiplier"] == pytest.approx(two["effective_noise_multiplier"])
    assert one["noise_multiplier"]["w"] == one["effective_noise_multiplier"]
    assert "one clip for both" in one["sampling"]


def test_extragradient_pays_for_two_releases_a_round(capsys):
    once = printed(capsys, *CALIBRATE, "--batch", "100")
    twice = printed(capsys, "calibrate", "extragradient", *CALIBRATE[2:], "--batch", "100")
    assert twice["noise_multiplier"]["w"] > 1.2 * once["noise_multiplier"]["w"]
    doubled = [str(2 * int(x)) if before == "--iterations" else x
               for before, x in zip(["", *CALIBRATE], CALIBRATE, strict=False)]
    assert printed(capsys, *doubled, "--batch", "100")["noise_multiplier"] == (
        twice["noise_multiplier"])
    assert main(["explain", "extragradient", *GIVEN]) == 0
    assert "100 of 100 allowed" in capsys.readouterr().out


@pytest.mark.usefixtures("real_noise")
def test_a_proximal_point_has_noise_over_its_displacement(capsys):
    given = ["--batch", "10", "--bound", "1", "--prox", "10.72983", "--lipschitz", "1"]
    made = printed(capsys, "calibrate", "proximal", "--epsilon", "1", "--delta", "1e-5",
                   "--population", "1000", "--iterations", "100", "--sampling", "disjoint",
                   "--json", *given)
    assert made["displacement"] * made["noise_multiplier"][""] == pytest.approx(0.07023295)
    assert main(["explain", "proximal", *GIVEN, "--prox", "3", "--lipschitz", "2", "--assumes",
                 "lipschitz", "--sampling", "fixed"]) == 0
    stated = capsys.readouterr().out
    assert "2-Lipschitz" in stated
    assert "modulus 1," in stated
    assert main(["calibrate", "proximal", *CALIBRATE[2:], "--batch", "10", "--share-w", ".5"]) == 2
    assert "leave out --share-w" in capsys.readouterr().err


@pytest.mark.usefixtures("real_noise")
def test_full_batches_and_the_other_relation(capsys):
    replace = printed(capsys, *CALIBRATE, "--sampling", "full")
    add = printed(capsys, *CALIBRATE, "--sampling", "full", "--neighbours", "add_or_remove_one")
    assert replace["effective_noise_multiplier"] == pytest.approx(
        2 * add["effective_noise_multiplier"])
    gda = printed(capsys, "calibrate", "gda", *CALIBRATE[2:])
    assert gda["effective_noise_multiplier"] == replace["effective_noise_multiplier"]


def test_a_share_of_the_budget_and_an_early_stop(capsys):
    z = printed(capsys, *CALIBRATE, "--sampling", "full", "--share-w", "0.9")["noise_multiplier"]
    assert (z["v"] / z["w"]) ** 2 == pytest.approx(9.0)
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(z["w"], z["v"]),
                      population=5000)
    stopped = printed(capsys, "epsilon", "gda", "--effective-noise-multiplier",
                      str(jmm.accounting.effective_noise_multiplier(query)), "--delta", "1e-5",
                      "--population", "5000", "--iterations", "50", "--spent", "10", "--json")
    assert stopped["epsilon_spent_if_fixed"] == pytest.approx(
        jmm.epsilon(jmm.Repeat(query=query, times=50), 1e-5, spent=10))
    assert stopped["epsilon"] == pytest.approx(1.0)  # whatever ended the run


@pytest.mark.parametrize(("extra", "message"), [
    ([], "--batch"),
    (["--batch", "6000"], "--batch must lie in"),
    (["--batch", "100", "--sampling", "full"], "--batch goes with"),
    (["--batch", "100", "--epsilon", "-1"], "epsilon must lie in"),
    (["--batch", "100", "--epsilon", "nan"], "epsilon must lie in"),
    (["--batch", "100", "--delta", "0"], "delta must lie in"),
    (["--batch", "100", "--iterations", "0"], "--iterations"),
    (["--batch", "100", "--population", "-3"], "--population"),
    (["--batch", "100", "--share-w", "1"], "w must lie in"),
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
    stated = printed(capsys, "epsilon", "sgda", *GIVEN, "--sampling", sampling, "--json")
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None), sampling=how,
                      population=5000)
    assert stated["epsilon"] == jmm.epsilon(jmm.Repeat(query=query, times=50), 1e-5)
    assert stated["losses_noise_multiplier"] is None


def test_group_losses_take_their_share_and_the_gradients_the_rest(capsys):
    full = [*CALIBRATE, "--sampling", "full"]
    alone = printed(capsys, *full)
    made = printed(capsys, *full, "--laplace", "0.2", "--losses-noise", "laplace")
    losses = jmm.GroupLosses(bound=1.0, sizes=(100,), times=50,
                             noise_multiplier=made["losses_noise_multiplier"])
    assert 0.199 < jmm.epsilon(losses, 1e-5) <= 0.2
    assert 0.999 < made["epsilon"] <= 1.0
    z = made["effective_noise_multiplier"]
    assert alone["effective_noise_multiplier"] < z < 1.1 * alone["effective_noise_multiplier"]
    assert "Laplace" in made["sampling"]
    assert "LaplaceDpEvent" in made["event"]
    given = ["epsilon", "gda", "--effective-noise-multiplier", str(z), "--delta", "1e-5",
             "--population", "5000", "--iterations", "50", "--laplace-noise-multiplier",
             str(made["losses_noise_multiplier"]), "--json"]
    assert printed(capsys, *given)["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)
    assert printed(capsys, *given, "--spent", "10")["epsilon_spent_if_fixed"] < 0.6


@pytest.mark.slow
def test_groups_are_calibrated_by_their_sizes(capsys):
    sizes = ["--group-sizes", *["1000"] * 5]
    target = ["--epsilon", "1", "--delta", "1e-6", "--iterations", "200", *sizes, "--json"]
    laplace = ["--losses-noise", "laplace"]
    made = printed(capsys, "calibrate", "group_sgd", *target, *laplace)
    assert made["effective_noise_multiplier"] / 2 == pytest.approx(61.30, rel=2e-3)
    assert made["losses_noise_multiplier"] == pytest.approx(266.98, rel=1e-3)
    assert "5 groups of 1000" in made["sampling"]
    half = printed(capsys, "calibrate", "active_groups", *target, "--laplace", "0.5", *laplace)
    assert half["losses_noise_multiplier"] < made["losses_noise_multiplier"]
    unequal = [*target[:-1], "900", "--sampling", "fixed", "--batch", "50", "--json"]
    small = printed(capsys, "calibrate", "group_sgd", *unequal)
    assert small["effective_noise_multiplier"] / 2 > 3.463  # that of 1000 records
    given = ["--effective-noise-multiplier", str(made["effective_noise_multiplier"]),
             "--laplace-noise-multiplier", str(made["losses_noise_multiplier"]), "--delta", "1e-6",
             "--iterations", "200", *sizes]
    assert printed(capsys, "epsilon", "group_sgd", *given, "--json")["epsilon"] == (
        pytest.approx(made["epsilon"], rel=1e-9))
    stopped = printed(capsys, "epsilon", "group_sgd", *given, "--spent", "20", "--json")
    stated = printed(capsys, "explain", "group_sgd", *given, "--spent", "20", "--json")
    assert (stated["spent"], stated["allowed"]) == (20, 400)
    assert stated["epsilon"] == stopped["epsilon"] == pytest.approx(made["epsilon"], rel=1e-9)
    assert stated["epsilon_spent_if_fixed"] == stopped["epsilon_spent_if_fixed"] < 0.3


@pytest.mark.parametrize(("arguments", "message"), [
    (["group_sgd", "--population", "9"], "needs --group-sizes"),
    (["sgda", "--group-sizes", "5", "5", "--population", "9"],
     "goes with active_groups, balanced_groups, group_sgd, phased_erm, not with sgda"),
    (["sgda", "--population", "9", "--parts", "2"],
     "--parts goes with recursive_inner, recursive_sgda"),
    (["sgda"], "needs --population"),
    (["group_sgd", "--group-sizes", "5", "0"], "--group-sizes"),
    (["group_sgd", "--group-sizes", "5", "--share-w", "0.5"], "--share-w"),
    (["group_sgd", "--group-sizes", "5", "--laplace", "2"], "--laplace"),
    (["group_sgd", "--group-sizes", "50", "--sampling", "disjoint", "--batch", "5"], "passes"),
])
def test_groups_without_sizes_or_with_what_they_lack_are_refused(capsys, arguments, message):
    common = ["--epsilon", "1", "--delta", "1e-6", "--iterations", "5"]
    assert main(["calibrate", *arguments, *common]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_explain_says_what_epsilon_computes(capsys):
    given = ["sgda", *GIVEN, "--laplace-noise-multiplier", "80", "--sampling", "disjoint"]
    for spent in ([], ["--spent", "10"]):
        number = printed(capsys, "epsilon", *given, *spent, "--json")["epsilon"]
        stated = printed(capsys, "explain", *given, *spent, "--json")
        assert stated["epsilon"] == number
        assert main(["explain", *given, *spent]) == 0
        words = one_line(capsys.readouterr().out)
        assert words.startswith(
            f"The releases of this run satisfy ({rounded_up(number)}, 1e-05)-differential privacy")
        assert f"{stated['spent']} of 100 allowed" in words  # 50 of gradients, 50 of losses
        assert "disjoint batches of 100" in words
        assert "Laplace" in words
    assert stated["spent"] == 20
    assert stated["epsilon_spent_if_fixed"] < stated["epsilon"]
    stopped = printed(capsys, "epsilon", *given, "--spent", "10", "--json")
    assert (stopped["epsilon_if_stopped_by_looking"] == stated["epsilon_if_stopped_by_looking"]
            > stated["epsilon_spent_if_fixed"])


def test_a_delta_above_one_in_n_is_told_once(capsys):
    assert main(["calibrate", "gda", "--epsilon", "1", "--delta", "0.01", "--population", "500",
                 "--iterations", "5"]) == 0
    assert capsys.readouterr().err.count("above 1/n") == 1


@pytest.mark.parametrize(("extra", "message"), [
    (["--sampling", "fixed"], "--sampling fixed needs --batch"),
    (["--sampling", "disjoint", "--batch", "1.5"], "--batch must be an integer"),
    (["--sampling", "full", "--laplace", "1"], "--laplace must lie in"),
    (["--sampling", "full", "--laplace", "0.2", "--neighbours", "add_or_remove_one"],
     "add_or_remove_one"),
    (["--sampling", "full", "--laplace", "0.2", "--epsilon", "nan"], "epsilon must lie in"),
])
def test_a_bad_sampler_or_share_ends_with_its_name_and_status_2(capsys, extra, message):
    assert main([*CALIBRATE, *extra]) == 2
    stated = capsys.readouterr()
    assert message in stated.err
    assert not stated.out


@pytest.mark.slow
def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxminimax", "calibrate", "gda", "--epsilon", "1", "--delta",
         "1e-6", "--population", "1000", "--iterations", "100"],
        check=True, capture_output=True, text=True)
    assert "119.57" in done.stdout  # 119.492 of real noise, and what rounding costs


# --- what it says of itself ---


def test_every_option_of_every_command_has_a_help_text(capsys):
    made = options.parser("what it is for")
    (commands,) = (x for x in made._actions if isinstance(x, argparse._SubParsersAction))
    assert {"calibrate", "epsilon", "explain", "profile"} <= set(commands.choices)
    for name, command in (("", made), *commands.choices.items()):
        assert command.description
        for action in command._actions:
            assert action.help, f"{name} {action.option_strings or action.dest}"
            assert action.help != argparse.SUPPRESS
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    assert "examples:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_example_of_every_algorithm_runs_as_printed(capsys, name):
    words = options.example_of(name)
    assert f"python -m jaxminimax {' '.join(words)}" in options.parser("").format_help()
    made = printed(capsys, *words, "--json")
    assert made["algorithm"] == name
    assert 0.99 < made["epsilon"] <= 1.0


# --- several records, profiles and plain words ---


def test_people_are_counted_by_every_command(capsys):
    given = ["gda", "--effective-noise-multiplier", "50", "--population", "5000", "--iterations",
             "20", "--people", "3", "--json"]
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(50.0, None), population=5000)
    expected = jmm.epsilon(jmm.Repeat(query=query, times=20), 1e-6, people=3)
    for command in ("epsilon", "explain"):
        stated = printed(capsys, command, *given, "--delta", "1e-6")
        assert (stated["epsilon"], stated["people"]) == (expected, 3)
    assert stated["attack_bounds"]["advantage"] == printed(capsys, "profile", *given)["advantage"]
    made = printed(capsys, "calibrate", "gda", "--epsilon", "1", "--delta", "1e-6", "--population",
                   "5000", "--iterations", "20", "--people", "3", "--json")
    assert made["effective_noise_multiplier"] == pytest.approx(
        3 * 4.224679 * 2 * 20**0.5, rel=2e-3)
    assert main(["epsilon", *given, "--delta", "1e-6", "--people", "0"]) == 2
    assert "people must be an integer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_profile_is_printed_and_drawn(capsys, tmp_path):
    given = ["profile", "gda", "--effective-noise-multiplier", "50", "--population", "5000",
             "--iterations", "20"]
    path = tmp_path / "profile.png"
    assert main([*given, "--plot", str(path)]) == 0
    words = capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Drawn: {path}" in words
    stated = jmm.accounting.Profile.from_json(printed(capsys, *given, "--json"))
    assert str(stated) in words
    assert "At delta" not in words
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(50 * 2**0.5, 50 * 2**0.5),
                      population=5000)
    expected = jmm.epsilon(jmm.Repeat(query=query, times=20), 1e-6)
    at = printed(capsys, *given, "--delta", "1e-6", "--json")["at_delta"]
    assert at == {"delta": 1e-6, "epsilon": pytest.approx(expected, rel=1e-9)}
    assert main([*given, "--delta", "1e-6"]) == 0
    assert f"At delta = 1e-06: epsilon = {rounded_up(expected, 6)}." in capsys.readouterr().out
    assert printed(capsys, *given, "--spent", "5", "--json")["advantage"] < stated.advantage
    assert main([*given, "--plot", str(tmp_path / "none" / "profile.png")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_delta_is_that_of_the_library_and_the_inverse_of_epsilon(capsys):
    given = ["sgda", *(x for x in GIVEN if x not in ("--delta", "1e-5")), "--json"]
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(5 * 2**0.5, 5 * 2**0.5),
                      sampling=jmm.Poisson(rate=0.02), population=5000)
    made = jmm.Repeat(query=query, times=50)
    stated = printed(capsys, "delta", *given, "--epsilon", "0.2", "--spent", "20")
    assert stated["delta"] == pytest.approx(jmm.delta(made, 0.2), rel=1e-9)
    assert stated["delta_spent_if_fixed"] == pytest.approx(jmm.delta(made, 0.2, spent=20), rel=1e-9)
    assert f"jaxminimax {jmm.__version__}" in stated["accountant"]
    back = printed(capsys, "epsilon", *given, "--delta", str(stated["delta"]))
    assert back["epsilon"] == pytest.approx(0.2, rel=1e-3)
    assert main(["delta", *given[:-1], "--epsilon", "-1"]) == 2
    assert "epsilon must lie in" in capsys.readouterr().err


def test_an_epsilon_that_is_not_proven_has_one_code_and_its_limit(capsys):
    given = ["epsilon", "gda", "--effective-noise-multiplier", "0.05", "--delta", "1e-6",
             "--population", "1000", "--iterations", "1"]
    stated = printed(capsys, *given, "--json")
    assert (stated["epsilon"], stated["epsilon_spent_if_fixed"]) == ("no guarantee", None)
    assert main(given) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"epsilon above what is proven, {stated['proven_up_to']:.4g} at most" in words
    at = printed(capsys, "profile", *given[1:], "--json")["at_delta"]
    assert at["epsilon"] == "no guarantee"
    assert main(["calibrate", "gda", "--epsilon", "1", "--delta", "1e-40", "--population", "1000",
                 "--iterations", "10"]) == 2
    assert "Choose a larger delta, or fewer releases" in capsys.readouterr().err


@pytest.mark.slow
def test_noise_is_printed_as_that_of_each_player(capsys):
    given = ["explain", "sgda", *GIVEN]
    assert printed(capsys, *given, "--json")["noise_multiplier"] == [
        {"w": pytest.approx(5 * 2**0.5), "v": pytest.approx(5 * 2**0.5)}]
    unequal = printed(capsys, *given, "--share-w", "0.9", "--json")
    (z,) = unequal["noise_multiplier"]
    assert (z["v"] / z["w"]) ** 2 == pytest.approx(9.0)
    assert unequal["effective_noise_multiplier"] == [pytest.approx(5.0)]
    (joint,) = printed(capsys, *given, "--joint-clip", "--json")["noise_multiplier"]
    assert joint == {"w": pytest.approx(5.0), "v": pytest.approx(5.0)}


def test_explain_says_how_many_of_the_allowed_releases_were_made(capsys):
    given = ["explain", "gda", "--effective-noise-multiplier", "50", "--population", "5000",
             "--iterations", "20", "--delta", "1e-6"]
    assert main([*given, "--spent", "8"]) == 0
    assert "8 of 20 allowed" in one_line(capsys.readouterr().out)


# --- plans ---

GROUPS = {"bound": 1.0, "lipschitz": 2.0, "diameter": 2.0}
PLANS = {
    "gda": {"population": 1000, "bound": 1.0, "smooth": 1.0, "modulus": 0.5},
    "optimistic": {"population": 1000, "dim": 4, "bound": 1.0, "smooth": 1.0, "diameter": 2.0,
                   "proved": True},
    "recursive": {"population": 4096, "dim": 4, "bound": 1.0, "smooth": 1.0, "diameter": 2.0,
                  "rounds": 3},
    "ftrl": {"population": 1000, "dim": 4, "bound": 1.0, "diameter": 2.0},
    "group_oco": {**GROUPS, "sizes": (50, 60), "dim": 3, "tree": True},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_that_of_the_library(capsys, name):
    numbers, words = dict(PLANS[name]), []
    for option, value in numbers.items():
        words.append(commands.flag_of(option))
        if value is not True:
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    target = {"epsilon": 1.0, "delta": 1e-6}
    stated = printed(capsys, "plan", name, "--epsilon", "1", "--delta", "1e-6", *words, "--json")
    if "lipschitz" in numbers:
        constants = {x: numbers.pop(x) for x in GROUPS}
        problem = jmm.problems.group_glm("hinge", feature_bound=1.0, radius=1.0)
        numbers["problem"] = problem._replace(**constants, smooth=None)
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


def test_without_an_algorithm_all_plans_stand_side_by_side(capsys):
    words = ("plan", "--epsilon", "1", "--delta", "1e-6", "--dim", "4", "--bound", "1")
    game = (*words, "--population", "1000", "--diameter", "2")
    rows = printed(capsys, *game, "--json")["plans"]
    made = jmm.plans(epsilon=1.0, delta=1e-6, population=1000, dim=4, bound=1.0, diameter=2.0)
    assert [(x["plan"], x["guarantee"]) for x in rows] == [
        (x.name, x.plan and x.plan.guarantee) for x in made]
    assert main(list(game)) == 0
    assert "Bounds on the strong gap on the population" in capsys.readouterr().out
    groups = (*words, "--lipschitz", "1", "--diameter", "2", "--group-sizes", "90", "80")
    rows = printed(capsys, *groups, "--json")["plans"]
    assert {x["algorithm"] for x in rows if x["planned"]} >= {"group_oco", "group_sgd"}
    assert main([*words, "--lipschitz", "1"]) == 2
    assert "--lipschitz is for groups" in capsys.readouterr().err
    assert main([*words, "--group-sizes", "9", "9"]) == 2
    assert "a plan for groups needs --lipschitz" in capsys.readouterr().err


def test_a_plan_takes_every_number_of_an_algorithm_and_no_other(capsys):
    for name, algorithm in ALGORITHMS.items():
        if not hasattr(algorithm, "plan"):
            continue
        offered = {*commands.numbers(), "lipschitz", "sizes"}
        assert set(commands.plan_options(name)) <= offered, name
    given = ["plan", "gda", "--epsilon", "1", "--delta", "1e-6", "--population", "1000"]
    assert main(given) == 2
    assert "Its public numbers are population, bound" in capsys.readouterr().err
    assert main([*given, "--lipschitz", "3"]) == 2
    assert "--lipschitz is no number of gda" in capsys.readouterr().err
    group = ["plan", "group_sgd", "--epsilon", "1", "--delta", "1e-6", "--group-sizes", "9", "9"]
    assert main([*group, "--dim", "3", "--bound", "1"]) == 2
    assert "group_sgd needs --lipschitz" in capsys.readouterr().err


def test_every_number_that_a_word_can_stand_for_is_an_option():
    for name, algorithm in ALGORITHMS.items():
        if hasattr(algorithm, "plan"):
            hints = typing.get_type_hints(algorithm.plan)
            readable = {x for x, hint in hints.items() if hint is bool or commands._READ.get(
                frozenset(typing.get_args(hint) or [hint]) - {type(None)})}
            # `smooth_l1` takes a `dim` of each player
            assert readable - {"epsilon", "delta", "neighbours", "smooth_l1"} <= set(
                commands.numbers()) | {"lipschitz", "sizes"}, name


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
    given = ["explain", "gda", "--effective-noise-multiplier", "50", "--population", "5000",
             "--iterations", "20", "--delta", "1e-6", "--unit", "one visit"]
    assert main(given) == 0
    words = one_line(capsys.readouterr().out)
    for part in ("unit of privacy one visit", "one record is replaced by another",
                 "trusted curator", "What the numbers mean:", "Guessing is right in 50 %",
                 "User: One record is 'one visit'", "Technical annex:"):
        assert part in words
    assert main([*given, "--people", "4"]) == 0
    assert "No person contributes more than 4 records" in one_line(capsys.readouterr().out)
