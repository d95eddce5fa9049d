"""Arrays of all rows: the same in memory and in files, block by block."""

import mmap
import tempfile

import jax
import numpy as np
import pandas as pd
import pytest

from jaxminimax.tables import (
    Number,
    Schema,
    files,
    labels,
    records,
    scaling,
    train,
)


@pytest.fixture
def in_files(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(scaling, "MAPPED", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield scaling.Store(1)
    assert not list((tmp_path / "temporary").iterdir()), "the files have no names"


def is_mapped(x):
    while isinstance(x, np.ndarray):
        x = x.base
    return isinstance(x, mmap.mmap)


def test_a_device_takes_arrays_of_both_kinds_as_they_lie(in_files):
    for store, mapped in ((in_files, True), (scaling.MEMORY, False)):
        x = store.zeros(5, 3, 2)
        assert (x.shape, x.dtype, x.any()) == ((5, 3, 2), np.float32, False)
        assert is_mapped(x) == mapped
        assert x.ctypes.data % 64 == 0
        assert store.zeros(0, 3).shape == (0, 3)


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 20])
def test_blocks_are_every_row_once(monkeypatch, rows):
    monkeypatch.setattr(scaling, "_BLOCK", 7)
    x = np.arange(2.0 * rows).reshape(rows, 2)
    assert np.array_equal(scaling.in_blocks(lambda a, b: a + b[:, :1], np.empty((rows, 2)), x, x),
                          x + x[:, :1])


@pytest.mark.parametrize("labels", [(), (3,)])
def test_persons_are_the_same_in_files(in_files, monkeypatch, labels):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)).astype(np.float32), rng.normal(size=(50, *labels))
    y[rng.random(50) < 0.2] = np.nan
    owners = rng.integers(0, 20, 50)
    memory = records.records(x, y, owners, 3)
    monkeypatch.setattr(scaling, "_BLOCK", 7)
    out = in_files.zeros(*memory.x.shape)
    mapped = records.records(x, y, owners, 3, out=out, store=in_files)
    assert mapped.x is out
    for one, other in zip(memory, mapped, strict=True):
        assert np.array_equal(one, other)
        assert is_mapped(other)
        assert not is_mapped(one)


@pytest.mark.slow
def test_features_in_a_file_train_the_same_scorer_bit_for_bit(tmp_path, monkeypatch, request):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300), "b": rng.uniform(0, 1, 300)})
    table["y"] = (table.a > 0).astype(int)
    table.to_parquet(tmp_path / "t.parquet")
    schema = Schema({"a": Number(-4, 4), "b": Number(0, 1)}, "y", 1)
    key = jax.random.key(0, impl="threefry2x32")
    with pytest.warns(UserWarning, match="delta"):
        memory = train(table, schema, epsilon=4.0, delta=1e-3, key=key)
    request.getfixturevalue("in_files")
    monkeypatch.setattr(files, "_ROWS", 64)
    frames, lines = files.Frames(tmp_path / "t.parquet", schema.numeric, schema.names), []
    release_line = labels.release_line
    monkeypatch.setattr(labels, "release_line", lambda *args: (
        lines.append(args), release_line(*args))[1])
    assert is_mapped(records.encoded(frames, schema).x)
    with pytest.warns(UserWarning, match="delta"):
        mapped = train(frames, schema, epsilon=4.0, delta=1e-3, key=key)
    assert np.array_equal(mapped.weights, memory.weights)
    for one in lines[0][2:5]:  # scores, labels and weights
        assert is_mapped(one), "nothing of all rows stays in memory"
