"""The benchmark of classes and numbers: gaps by the better side, and its file."""

import json

import pytest

from benchmarks.tables import label_tables


def run(gap):
    return {"references": {"usual": {"log_loss": 1.0, "macro_auc": 0.9}},
            "epsilons": {f"{e:g}": {"charged": e, "log_loss": 1.0 + gap, "macro_auc": 0.9 - gap}
                         for e in (0.5, 1.0, 4.0)}}


def test_a_gap_is_by_how_much_the_best_reference_is_better():
    runs = {"t": {"n": 8, "seeds": {str(k): run(gap) for k, gap in enumerate((0.1, 0.2, 0.3))}}}
    rows = label_tables.rows_of(runs)
    assert {(row["score"], row["epsilon"]) for row in rows} == {
        (what, e) for what in ("log_loss", "macro_auc") for e in (0.5, 1.0, 4.0)}
    for row in rows:
        assert row["gap"] == pytest.approx(0.2)
        assert row["gap_error"] == pytest.approx(0.1 / 3**0.5)


def test_it_goes_on_with_what_its_file_holds(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(label_tables, "measure", lambda *given: calls.append(given) or run(0.1))
    words = ["--tables", "fair: rating of the marriage", "--seeds", "2", "--json",
             str(tmp_path / "t.json"), "--markdown", str(tmp_path / "t.md")]
    for _ in range(2):
        assert label_tables.main(words) == 0
    assert len(calls) == 2
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 6
    assert (tmp_path / "t.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in label_tables.TABLES
                                  if name.startswith(("fair", "randhie"))])
def test_schemas_hold_the_tables(name):
    frame, schema = label_tables.TABLES[name][1]()
    x, y = schema.features(frame), schema.labels(frame)
    assert x.shape == (len(frame), schema.width)
    assert abs(x).max() <= 1
    if schema.kind == "classes":
        assert (y.sum(1) == 1).all()
        assert y.any(0).all()
    else:
        assert abs(y).max() <= 1
    assert schema.label not in schema.columns
