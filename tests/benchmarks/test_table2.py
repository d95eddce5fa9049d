"""Table 2: the printed noise, what it really costs, and the claims that are drawn from rows."""

import argparse
import bz2
import hashlib
import json
import math

import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from benchmarks.data_sets import data
from benchmarks.data_sets import ijcnn1 as set_ijcnn1
from benchmarks.papers.table2 import __main__ as table2
from benchmarks.papers.table2 import claims as table2_claims
from benchmarks.papers.table2 import figures as table2_figures
from benchmarks.papers.table2 import protocol as papers_protocol
from benchmarks.papers.table2 import settings as table2_settings
from benchmarks.papers.table2 import tuned as table2_tuned
from benchmarks.papers.table2 import verdicts as table2_verdicts
from jaxminimax import FixedSize, Query, Saddle
from jaxminimax.mechanism import Repeat


def row(**values):
    base = dict(reading="honest", dataset="mnist", method="linear", epsilon=1.0, delta=1e-6,
                auc_mean=92.0, auc_std=0.1, seeds=5, published=91.0)
    return {**base, **values}


def test_the_printed_noise_is_that_of_the_remark():
    # with the remark's own batch, n sqrt(epsilon / (4 T)), it is 4 sqrt(ln(1/delta) / epsilon)
    n, rounds, epsilon, delta = 39_992, 9_373, 1.0, 1e-6
    own = n * math.sqrt(epsilon / (4 * rounds))
    scaled = papers_protocol.noise_multiplier(n, rounds, epsilon, delta) * own / 64
    assert scaled == pytest.approx(4 * math.sqrt(math.log(1 / delta) / epsilon))
    assert scaled == pytest.approx(14.87, abs=5e-3)


def one_player(z, n, batch_times):
    return Repeat(query=Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None),
                              population=n, sampling=FixedSize(batch=64, replacement=True)),
                  times=batch_times)


@pytest.mark.slow
def test_what_the_pair_attains_is_its_divergence_and_below_the_bound():
    z, n, delta = 0.9, 500, 1e-4
    mechanism = one_player(z, n, 1)
    actual = papers_protocol.attained(mechanism, delta)
    x = np.linspace(-8, 25, 400_001) * z
    weight = stats.binom.pmf(np.arange(10), 64, 1 / n)
    far = sum(w * stats.norm.pdf(x, 2 * j, z) for j, w in enumerate(weight))
    near = stats.norm.pdf(x, 0, z)

    def divergence(epsilon):
        return max(np.sum(np.maximum(a - math.exp(epsilon) * b, 0))
                   for a, b in ((far, near), (near, far))) * (x[1] - x[0])

    assert divergence(actual) == pytest.approx(delta, rel=0.02)
    for times in (1, 200):
        mechanism = one_player(4.0, 5_000, times)
        low, high = papers_protocol.attained(mechanism, delta), jmm.epsilon(mechanism, delta)
        assert 0.8 * high < low <= high * 1.001
        assert papers_protocol.attained(one_player(2.0, 5_000, times), delta) > 1.5 * low


@pytest.mark.slow
def test_outside_its_conditions_the_printed_noise_is_not_private():
    mechanism = papers_protocol.described("linear", 60_000, 14_062, 10.0, 1e-6)
    assert papers_protocol.attained(mechanism, 1e-6) > 50
    inside = papers_protocol.described("linear", 60_000, 14_062, 0.1, 1e-6)
    assert papers_protocol.attained(inside, 1e-6) < jmm.epsilon(inside, 1e-6) < 0.1


def test_nseg_has_one_sigma_for_both_players_and_two_releases():
    both = papers_protocol.described("nseg", 39_992, 100, 1.0, 1e-6, Saddle(3.0, 4.0))
    one = papers_protocol.described("linear", 39_992, 100, 1.0, 1e-6, Saddle(3.0, 4.0))
    noise, clip = both.query.noise_multiplier, both.query.clip
    assert noise.w * clip.w == pytest.approx(noise.v * clip.v)
    z = one.query.noise_multiplier.w
    assert jmm.accounting.effective_noise_multiplier(both.query) == pytest.approx(z)
    assert jmm.accounting.effective_noise_multiplier(one.query) == pytest.approx(z / math.sqrt(2))
    assert both.times == 2 * one.times


def test_published_figures():
    assert table2_settings.published("mnist", "mlp", 0.5, 1e-6) == 98.656
    assert table2_settings.published("fashion_mnist", "nseg", math.inf, 1e-6) == 96.552
    assert table2_settings.published("ijcnn1", "linear", 10.0, 1e-4) == 91.387
    assert table2_settings.published("ijcnn1", "linear", 2.0, 1e-4) is None


def test_every_cell_has_settings():
    for dataset in table2_settings.DATASETS:
        for method in table2.METHODS:
            for epsilon in (1e-3, *table2_settings.EPSILONS, math.inf):
                _, s = table2_settings.choose(dataset, method, epsilon)
                assert s.features is None or s.features in data.maps.FEATURES[dataset]


def by_text(rows):
    return {c["claim"]: c for c in table2_claims.claims(rows)}


def test_claims_fail_where_they_should():
    rising = [row(epsilon=e, auc_mean=90 + e) for e in (0.1, 0.5, 1.0)]
    text = "honest: AUC does not fall as epsilon grows (three standard errors)"
    assert by_text(rising)[text]["holds"]
    assert by_text(rising)[text]["checked"] == 3
    falling = [*rising, row(epsilon=5.0, auc_mean=88.0)]
    assert not by_text(falling)[text]["holds"]
    assert "1 to 5" in by_text(falling)[text]["exceptions"][0]
    below = by_text([row(auc_mean=90.5)])["honest AUC at or above the published figure"]
    assert not below["holds"]
    assert "-0.50" in below["exceptions"][0]
    original = [row(epsilon=None, auc_mean=90.4, published=91.0),
                row(reading="printed", epsilon=None, auc_mean=90.6, published=91.0)]
    text = "without privacy, AUC within 0.5 points of the published one or above"
    assert by_text(original)[text]["holds"]  # the better reading counts
    assert not by_text(original[:1])[text]["holds"]
    above = row(reading="printed", true_epsilon_attained=1.5)
    text = "Remark 1's noise: true epsilon (attained by a pair) at or below the claimed one"
    assert not by_text([above])[text]["holds"]


def test_claims_of_the_figures_fail_where_they_should():
    def noise_row(**v):
        return dict(part="noise", dataset="mnist", epsilon=1.0, delta=1e-6, sigma_nseg=2.0,
                    sigma_w_sgda=1.0, sigma_w_sgda_equal=2.5, sigma_one_release=1.1, **v)

    first, equal, one = table2_verdicts.claims([noise_row(), {**noise_row(), "sigma_nseg": 0.9}])
    assert not first["holds"]
    assert len(first["exceptions"]) == 1
    assert not equal["holds"]
    assert one["holds"]


@pytest.mark.parametrize(("difference", "seeds", "said"), [
    (-1.0, 4, "does NOT hold"), (1.0, 4, "holds"), (0.2, 4, "is not decided"),
    (9.0, 1, "is not decided")])
def test_claims_of_the_figures_are_decided_by_standard_errors(difference, seeds, said):
    def point(size, auc):
        return dict(part="batch", dataset="mnist", scorer_of="linear", epsilon=1.0, batch=size,
                    auc_mean=auc, auc_std=0.4, seeds=seeds)

    rows = [point(64, 96.0), point(256, 96.0 + difference), point(1024, 99.0)]
    (actual,) = table2_verdicts.claims(rows)
    assert table2_verdicts.verdict(actual) == said


def test_both_splits_of_the_noise_spend_the_same_budget():
    args = argparse.Namespace(datasets=("mnist",), delta=(1e-6,), epsilon=(1.0,))
    (row,) = table2_figures.noise(args)
    for split in ("", "_equal"):
        spent = sum((g / row[f"sigma_{p}_sgda{split}"]) ** 2
                    for p, g in zip("wv", table2_figures._LARGEST["mnist"], strict=True))
        once = math.hypot(*table2_figures._LARGEST["mnist"]) / row["sigma_one_release"]
        assert spent == pytest.approx(once**2)
    assert row["sigma_w_sgda_equal"] == pytest.approx(row["sigma_v_sgda_equal"] * 406 / 9)
    assert row["sigma_w_sgda"] < row["sigma_w_sgda_equal"]


def test_points_of_the_figures_have_the_scorer_that_their_settings_are_for():
    args = argparse.Namespace(datasets=table2_settings.DATASETS, parts=("hidden", "batch"),
                              quick=False)
    points = table2_figures.cells(args)
    assert len({p.name for p in points}) == len(points) == 3 * (3 * 4 + 2 * 5)
    for p in points:
        for scorer, s, rate in table2_figures.tried(p, False):
            own = table2_settings.choose(p.dataset, p.method, p.epsilon)
            assert (scorer, s.features) == (own[0], own[1].features)
            assert s.hidden == (p.size if p.part == "hidden" else 256)
            assert rate is None or 0 < rate < 1
    assert {table2_figures.tried(p, False)[0][0] for p in points
            if (p.part, p.dataset, p.epsilon) == ("hidden", "ijcnn1", 0.1)} == {"tanh"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An ijcnn1 of 400 rows with a label that a linear scorer can find."""
    rng = np.random.default_rng(0)
    (tmp_path / "ijcnn1").mkdir()
    for part, n in (("trn", 400), ("tst", 100)):
        x = rng.uniform(0, 1, (n, 22)).round(3)
        y = np.where(x[:, 12] - x[:, 15] > 0.3, 1, -1)
        text = "".join(f"{label:+d} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(r)) + "\n"
                       for label, r in zip(y, x, strict=True))
        content = bz2.compress(text.encode())
        (tmp_path / "ijcnn1" / f"ijcnn1.{part}.bz2").write_bytes(content)
        monkeypatch.setitem(set_ijcnn1.FILES.checksums, f"ijcnn1.{part}",
                            hashlib.sha256(content).hexdigest())
    return tmp_path


@pytest.mark.nightly
def test_the_table_is_made_kept_and_gone_on_with(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(papers_protocol.TABLE4, ("linear", "ijcnn1"),
                        papers_protocol.Printed((8.0, 8.0), 4, (8.0, 8.0), 2, 10))
    path, text, picture = (tmp_path / f"t.{end}" for end in ("json", "md", "png"))
    given = ["--datasets", "ijcnn1", "--methods", "linear", "--epsilon", "0.5", "5", "--delta",
             "1e-3", "--seeds", "1", "--data-dir", str(folder), "--json", str(path), "--markdown",
             str(text), "--plot", str(picture)]
    assert table2.main(given) == 0
    out = json.loads(path.read_text())
    rows = out["rows"]
    assert len(rows) == 2 * 3
    private = [r for r in rows if r["epsilon"] is not None]
    for r in private:
        if r["reading"] == "honest":
            assert r["noise_multiplier"] > 0
        else:
            assert r["true_epsilon_attained"] > 0
            assert r["clip_w"] > 0
    assert {"auc_mean", "auc_test_file"} <= set(rows[0])
    statements = [cell["statement"] for cell in out["cells"].values() if "statement" in cell]
    assert [round(s["epsilon"], 6) <= e for s, e in zip(statements, (0.5, 5), strict=True)]
    assert all(s["delta"] == 1e-3 for s in statements)
    assert "true ε" in text.read_text()
    assert picture.read_bytes()[:4] == b"\x89PNG"

    monkeypatch.setattr(table2, "honest", lambda *_: pytest.fail("it was run again"))
    monkeypatch.setattr(table2, "printed", lambda *_: pytest.fail("it was run again"))
    assert table2.main(given) == 0
    with pytest.raises(SystemExit):
        table2.main([*given[:-6], "--split", "validation", "--json", str(path)])
    assert "other arguments" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "message"), [
    (["--epsilon", "-1"], "give a number"),
    (["--datasets", "cifar"], "invalid choice"),
    (["--data-dir", "/nowhere"], "no such folder"),
])
def test_bad_input_is_refused(given, message, capsys):
    with pytest.raises(SystemExit) as stop:
        table2.main(given)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_the_figures_are_made_kept_and_gone_on_with(folder, tmp_path, monkeypatch, capsys):
    path, picture = tmp_path / "f.json", tmp_path / "f.png"
    given = ["--datasets", "ijcnn1", "--parts", "hidden", "--quick", "--data-dir", str(folder),
             "--json", str(path), "--plot", str(picture)]
    one = table2_figures.Cell("hidden", "ijcnn1", "mlp", 1.0, 8)
    monkeypatch.setattr(table2_figures, "cells", lambda _: [one])
    assert table2_figures.main(given) == 0
    out = json.loads(path.read_text())
    assert [r["hidden"] for r in out["rows"]] == [8]
    assert list(out["cells"]) == [one.name]
    assert out["arguments"]["quick"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(table2_figures, "measured", lambda *_: pytest.fail("it was run again"))
    assert table2_figures.main(given) == 0
    with pytest.raises(SystemExit):
        table2_figures.main([x for x in given if x != "--quick"])
    assert "other arguments" in capsys.readouterr().err


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_candidates_of_a_search_gather_equal_noise(epsilon):
    n, delta = 40_000, 1e-6
    actual = table2_tuned.candidates(n, 0.1, epsilon, delta)
    once = Repeat(query=Query(clip=Saddle(1.0, None), population=n), times=1)
    z = jmm.accounting.calibrate_noise(once, epsilon, delta).query.noise_multiplier.w
    gathered = [s.iterations * s.step * s.clip * z / n for s in actual]
    assert gathered == pytest.approx([gathered[0]] * 3)
    time = actual[1].iterations * actual[1].step
    assert actual[1].clip == 20.0
    assert max(gathered[1] / 0.05, time / 25.0) == pytest.approx(1.0, rel=1e-3)
    assert min(gathered[1] / 0.05, time / 25.0) <= 1.001
