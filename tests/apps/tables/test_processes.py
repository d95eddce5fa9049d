"""Training by several processes: one release of all rows, and the same scorer for any number."""

import json
import socket
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import (
    Charged,
    Number,
    Schema,
    Scorer,
    files,
    processes,
    statistics,
    train,
)

SCHEMA = Schema({"a": Number(-4, 4), "b": Number(0, 1)}, "y", 1)
OPTIONS = ("--label", "y", "--positive", "1", "--numeric", "a=-4:4", "b=0:1", "--epsilon", "4",
           "--delta", "1e-5", "--json")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=303), "b": rng.uniform(0, 1, 303)})
    frame["y"] = (frame.a > 0).astype(int)
    frame.to_parquet(path, row_group_size=70)
    frame.to_csv(path.with_suffix(".csv"), index=False)
    return path


def alone():
    return jax.make_mesh((1,), ("data",))


@pytest.mark.parametrize(("words", "message"), [
    (("--process", "0"), "say --processes P too"),
    (("--processes", "0"), "--processes must be an integer, at least 1"),
    (("--processes", "2", "--process", "0"), "go together"),
    (("--processes", "2", "--process", "2", "--coordinator", "127.0.0.1:1"), "must be 0 to 1"),
    (("--processes", "1", "--test-fraction", "0.5"), "leave --test-fraction out"),
    (("--processes", "1", "--owner", "b2"), "has an owner, which need all rows in one place")])
def test_arguments_that_processes_cannot_follow_are_refused(table, capsys, words, message):
    assert main.main(["train", str(table), *OPTIONS, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_csv_file_and_a_schema_that_needs_all_rows_are_refused(table):
    frames = files.Frames(table.with_suffix(".csv"), SCHEMA.numeric, SCHEMA.names)
    how = {"epsilon": 1.0, "delta": 1e-5, "mesh": alone(), "shards": 8}
    with pytest.raises(ValueError, match=r"to_parquet\(...\) makes one"):
        train(frames, SCHEMA, **how)
    with pytest.raises(ValueError, match="ranges that are charged"):
        train(frames, Schema({"a": Charged()}, "y", 1), **how)


@pytest.mark.parametrize(("first", "count"), [(0, 303), (0, 70), (69, 2), (140, 70), (302, 1)])
def test_a_stretch_of_a_file_has_its_rows_and_no_others(table, monkeypatch, first, count):
    monkeypatch.setattr(files, "_ROWS", 64)
    frames = files.Frames(table, SCHEMA.numeric, SCHEMA.names)
    part = pd.concat(frames.stretch(first, count), ignore_index=True)
    full = pd.read_parquet(table)[first: first + count].reset_index(drop=True)
    pd.testing.assert_frame_equal(part[full.columns], full)


def test_rows_are_padded_for_shards_and_lie_as_they_are(table):
    share = processes.Share(303, alone(), 8)
    assert (share.first, share.count, share.padded_rows) == (0, 303, 304)
    rows = np.arange(304.0, dtype=np.float32)
    placed = share.place(rows)
    assert (placed.population, placed.shards) == (303, 8)
    assert np.array_equal(placed.rows, rows)
    parts = [rows[part] for part in share.shards(304)]
    assert [len(part) for part in parts] == [38] * 8
    assert np.array_equal(np.concatenate(parts), rows)


@pytest.mark.slow
def test_shards_add_up_to_the_release_of_all_rows_and_padding_never_counts():
    """With the noise of one release: of eight of them it would be another one."""
    share, rng = processes.Share(303, alone(), 8), np.random.default_rng(0)
    x, y, weight = (rng.uniform(-1, 1, (304, 1, 3)).astype(np.float32),
                    rng.integers(0, 2, (304, 1)).astype(np.float32), np.ones((304, 1), np.float32))
    described = statistics.one_release(303, 2.0, 3.0)
    key = jax.random.key(0)
    one, many = (statistics.release_moments(key, described, *(a[:n] for a in (x, y, weight)),
                                            SCHEMA, place=place)
                 for n, place in ((303, jax.device_put), (304, share.place)))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * statistics.deviation(described))


@pytest.mark.nightly
def test_two_processes_make_one_release_with_the_noise_of_one(table, tmp_path):
    """And one charge; and a process with another seed or file is refused by all."""
    ledger = str(tmp_path / "l.json")
    jmm.accounting.Ledger(ledger, epsilon=9.0, delta=1e-4)
    other = tmp_path / "other.parquet"
    pd.read_parquet(table)[::-1].to_parquet(other)

    def command(*words, path=table, seed="3"):
        return [sys.executable, "-m", "jaxminimax", "train", str(path), *OPTIONS, "--seed", seed,
                *words]

    def pair(folder, *words, **of_second):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        more = ("--out", str(tmp_path / folder), "--processes", "2", "--coordinator",
                f"127.0.0.1:{port}", *words)
        started = [subprocess.Popen(command(*more, "--process", str(k), **(of_second if k else {})),
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for k in range(2)]
        return [(*one.communicate(timeout=300), one.returncode) for one in started]

    subprocess.run(command("--out", str(tmp_path / "one"), "--processes", "1"), check=True,
                   stdout=subprocess.DEVNULL)
    (out, _, status), (second, _, _) = pair("two", "--ledger", ledger)
    assert status == 0
    assert json.loads(out)["statement"]["epsilon"] <= 4
    assert json.loads(second) == {"process": 1}
    one, two = ((tmp_path / name / "model.json").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(jmm.accounting.Ledger(ledger).statement().runs) == 1
    plain = train(pd.read_parquet(table), SCHEMA, epsilon=4.0, delta=1e-5,
                  key=jax.random.key(3, impl="threefry2x32"))
    np.testing.assert_allclose(Scorer.load(tmp_path / "two").weights, plain.weights, rtol=1e-4)
    for name, different in (("key or seed", {"seed": "4"}), ("table", {"path": other})):
        for _, err, status in pair(name, **different):
            assert status == 2, err
            assert f"{name} must be equal on all processes" in err
        assert not (tmp_path / name / "model.json").exists()
