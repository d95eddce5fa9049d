"""The benchmark of whole tables: its own reference, its means and errors, and its file."""

import json

import numpy as np
import pytest

from benchmarks.tables import scorers, table_sets


def test_means_have_their_standard_errors():
    runs = {"t": {"source": "s", "seeds": {str(k): {
        "reference": 0.9, "epsilons": {"1": {"auc": 0.9 - gap, "plain": 0.5, "charged": 1.0}}}
        for k, gap in enumerate((0.01, 0.02, 0.03))}}}
    (row,) = scorers.rows_of(runs)
    assert row["gap"] == pytest.approx(0.02)
    assert row["gap_error"] == pytest.approx(0.01 / 3**0.5)
    assert row["others"] == {}
    assert (row["plain_gap"], row["seeds"], row["source"]) == (pytest.approx(0.4), 3, "s")


def test_it_goes_on_with_what_its_file_holds(tmp_path, monkeypatch, capsys):
    calls = []

    def made(table, seed, delta):
        calls.append((table.name, seed))
        return {"reference": 0.9, "epsilons": {
            f"{e:g}": {"auc": 0.88, "plain": 0.7, "charged": e} for e in (0.5, 1.0, 4.0)}}

    monkeypatch.setattr(scorers, "measure", made)
    given = ["--quick", "--json", str(tmp_path / "t.json"), "--markdown", str(tmp_path / "t.md"),
             "--plot", str(tmp_path / "t.svg")]
    assert scorers.main(given) == 0
    assert calls == [(name, seed) for name in table_sets.QUICK for seed in (0, 1)]
    assert scorers.main(given) == 0
    assert len(calls) == 4
    held = json.loads((tmp_path / "t.json").read_text())
    assert len(held["rows"]) == 6
    assert {row["gap_error"] for row in held["rows"]} == {0.0}
    assert (tmp_path / "t.md").read_text() in capsys.readouterr().out


def test_a_table_whose_file_is_missing_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXMINIMAX_DATA", str(tmp_path))
    table_sets._adult.cache_clear()
    assert scorers.main(["--tables", "adult: income"]) == 1
    assert "is missing; save https://" in capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n, (source, *_) in table_sets.TABLES.items()
                                  if source in ("fair", "randhie")])
def test_schemas_hold_the_tables(name):
    table = table_sets.load(name)
    assert len(table.frame) >= 5000
    x, y = table.schema.features(table.frame), table.schema.labels(table.frame)
    assert x.shape[1] == table.schema.width
    assert 0.01 < y.mean() < 0.99
    assert np.all(x.min(0) >= -1)
    assert np.all(x.max(0) <= 1)
    assert table.schema.label not in table.schema.columns
