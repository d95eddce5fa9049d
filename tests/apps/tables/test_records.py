"""Tables as arrays: the same from a frame and from pieces of a file, whatever a piece holds."""

import dataclasses
import math
import mmap
import tempfile

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    files,
    labels,
    records,
    statistics,
    train,
    training,
)
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base import identity
from jaxminimax.estimators import PrivateClassifier

SCHEMA = Schema({"a": Charged(missing=True), "b": Number(0, 1), "c": Category(("u", "v"))}, "y", 1,
                owner="who", most=2, groups="c", group_values=("u", "v"))


def made(n=50):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(40, 10, n), "b": rng.uniform(0, 1, n),
                         "c": rng.choice(["u", "v", "é"], n), "y": rng.integers(0, 2, n),
                         "who": rng.integers(0, 9, n), "other": rng.normal(size=n)})


def same(one, other):
    for x, y in zip(one[:-1], other[:-1], strict=True):  # without the store
        assert x.dtype.kind == y.dtype.kind
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


@pytest.fixture(params=[0, files._SMALL])
def pieces(tmp_path, monkeypatch, request):
    """Reads a table in pieces, of a CSV file by pandas or without it, and as one frame."""
    monkeypatch.setattr(files, "_ROWS", 7)
    monkeypatch.setattr(files, "_SMALL", request.param)

    def of(content):
        path = tmp_path / ("t.csv" if isinstance(content, bytes) else "t.parquet")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.to_parquet(path)
        by_pieces = records.encoded(files.Frames(path, SCHEMA.numeric, SCHEMA.names), SCHEMA)
        return by_pieces, records.encoded(files.read(path, SCHEMA.numeric), SCHEMA)
    return of


@pytest.mark.parametrize(("row", "cell"), [
    (9, ""), (9, "x"), (0, "x"), (49, "1_0"), (20, "1_0"), (30, '"a\nb"'), (49, "nan")])
def test_pieces_of_a_csv_file_are_the_whole(pieces, row, cell):
    lines = made().to_csv(index=False).split("\n")
    lines[row + 1] = cell + lines[row + 1][lines[row + 1].index(","):]
    same(*pieces("\n".join(lines).encode()))


def test_text_that_is_no_utf8_is_read_where_it_is_met(pieces):
    lines = made().to_csv(index=False).encode().split(b"\n")
    lines[30] = b"1,0.5,\xe9,1,\xe9,1"
    one, whole = pieces(b"\n".join(lines))
    same(one, whole)
    assert one.owners[29] == "\udce9"


def test_pieces_of_a_parquet_file_are_the_whole(pieces):
    one, whole = pieces(made())
    same(one, whole)
    assert one.x.ctypes.data % 64 == 0  # or a device would copy it


def test_a_missing_integer_changes_its_own_row_of_a_parquet_file(tmp_path):
    first = 2**53 + 1  # floats have no such number
    schema = Schema({"a": Category((first, first + 2)), "b": Number(0, 9)}, "y", first)
    path = tmp_path / "t.parquet"
    for last in (7, None):
        numbers = pa.array([first, first + 2, last], pa.int64())
        parquet.write_table(pa.table(dict.fromkeys("aby", numbers)), path)
        for one in (records.encoded(files.Frames(path, schema.numeric, schema.names), schema),
                    records.encoded(files.read(path), schema)):
            assert one.x[:2, :2].tolist() == [[1, 0], [0, 1]]
            assert one.x[:, 2].tolist() == [1, 1, np.float32(5 / 9) if last else 0]
            np.testing.assert_array_equal(one.labels, [1, 0, 0 if last else np.nan])


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float32()])
def test_a_cell_that_is_missing_from_a_dictionary_is_no_other_rows(kind):
    schema = Schema({"a": Number(0, 4, missing=True), "b": Category(("1", "2", "3"))}, "y", "1",
                    owner="o", groups="b", group_values=("1", "2", "3"))
    pieces, numbers = [], []
    for last in ("2", "3"):  # NumPy would read the missing cell as the last value of the dictionary
        column = pa.chunked_array([pa.array(["1", None, last]).cast(kind).dictionary_encode()])
        table = pa.table({"a": column, "b": column, "y": column, "o": ["p", "q", "r"]})
        read = records.encoded(table, schema)
        pieces.append((read.x[:2].tolist(), read.labels[:2].tolist(), read.groups[:2].tolist()))
        with pytest.raises(ValueError, match="row 1 of owners"):
            identity.persons(column)
        with pytest.raises((ValueError, TypeError), match=r"[uU]nknown|not supported|NaN"):
            PrivateClassifier(schema={"b": schema.columns["b"]}).fit(table, column)
        numbers.append(PrivateClassifier()._table(table.select(["a"]), [0, 1, 0])[0]["a"])
    np.testing.assert_equal(*pieces)  # of NaN, too
    assert pieces[0][0][1] == [0, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(numbers, [[1, np.nan, 2], [1, np.nan, 3]])


def test_a_column_of_numbers_and_groups_is_read_as_text(tmp_path, monkeypatch):
    schema = Schema({"a": Number(0, 4)}, "y", "1", groups="a", group_values=("1.50", "2"))
    monkeypatch.setattr(files, "_SMALL", 0)
    for other in ("3", "x"):  # which pandas does not read as a number
        (tmp_path / "t.csv").write_text(f"a,y\n1.50,1\n{other},0\n")
        read = records.encoded(files.Frames(tmp_path / "t.csv", schema.numeric, schema.names),
                               schema)
        assert (read.groups[0], read.x[0, 0]) == (0, -0.25)


def test_names_of_owners_are_stated_to_be_public(monkeypatch):
    monkeypatch.setattr(training, "carry_out", lambda prepared, *_, **__: prepared.assumed)
    schema = dataclasses.replace(SCHEMA, columns={"b": Number(0, 1)}, groups=None, group_values=())
    for one, stated in ((schema, True), (dataclasses.replace(schema, owner=None, most=1), False)):
        assumed = training.train(made(), one, epsilon=1.0, delta=1e-6)
        assert (identity.NAMES in assumed) is stated


def test_a_cell_under_a_mask_is_missing():
    schema = Schema({"a": Number(0, 4, missing=True), "b": Category(("1", "2"))}, "y", "1")
    column = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
    read = records.encoded({"a": column, "b": column, "y": column}, schema)
    assert read.x[1].tolist() == [0, 1, 0, 0, 0]
    np.testing.assert_array_equal(read.labels, [1, np.nan, 0])


def test_a_bar_shows_the_rows_that_were_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "_ROWS", 7)
    made().to_parquet(tmp_path / "t.parquet")
    frames = files.Frames(tmp_path / "t.parquet", SCHEMA.numeric, SCHEMA.names)
    records.encoded(frames, SCHEMA)
    assert capsys.readouterr().err == ""
    records.encoded(frames, SCHEMA, progress=True)
    assert "50/50" in capsys.readouterr().err


def test_what_a_file_does_not_have_is_named_with_all_its_columns(pieces):
    with pytest.raises(ValueError, match=r"no column 'b'.*other"):
        pieces(made().drop(columns="b"))


def test_a_line_with_a_cell_more_is_refused_in_any_piece(pieces):
    with pytest.raises(ValueError, match=r"line 52, saw 7|record 51 has 7 cells"):
        pieces(made().to_csv(index=False).encode() + b"1,2,u,1,1,1,1\n")


def test_charged_cells_come_into_their_places():
    table = records.encoded(made(), SCHEMA)
    assert not table.x[:, :2].any()
    released = statistics.with_ranges(SCHEMA, [Number(20, 60)])
    records.encode_charged(table, SCHEMA, released)
    x = table.x
    assert np.array_equal(x[:, :-1], released.features(made()))


def test_columns_of_two_lengths_are_refused():
    table = {name: made()[name].to_numpy() for name in made()}
    with pytest.raises(ValueError, match="one length"):
        records.encoded(table | {"y": np.ones(1)}, SCHEMA)


# --- arrays of all rows: the same in memory and in files, block by block ---


@pytest.fixture
def in_files(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(records, "MAPPED", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield records.Store(1)
    assert not list((tmp_path / "temporary").iterdir()), "the files have no names"


def is_mapped(x):
    while isinstance(x, np.ndarray):
        x = x.base
    return isinstance(x, mmap.mmap)


def test_a_device_takes_arrays_of_both_kinds_as_they_lie(in_files):
    for store, mapped in ((in_files, True), (records.MEMORY, False)):
        x = store.zeros(5, 3, 2)
        assert (x.shape, x.dtype, x.any()) == ((5, 3, 2), np.float32, False)
        assert is_mapped(x) == mapped
        assert x.ctypes.data % 64 == 0
        assert store.zeros(0, 3).shape == (0, 3)


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 20])
def test_blocks_are_every_row_once(monkeypatch, rows):
    monkeypatch.setattr(records, "_BLOCK", 7)
    x = np.arange(2.0 * rows).reshape(rows, 2)
    assert np.array_equal(records.in_blocks(lambda a, b: a + b[:, :1], np.empty((rows, 2)), x, x),
                          x + x[:, :1])


@pytest.mark.parametrize("labels", [(), (3,)])
def test_persons_are_the_same_in_files(in_files, monkeypatch, labels):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)).astype(np.float32), rng.normal(size=(50, *labels))
    y[rng.random(50) < 0.2] = np.nan
    owners = rng.integers(0, 20, 50)
    index = records.by_person(50, owners, 3)
    memory = records.records(x, y, index)
    monkeypatch.setattr(records, "_BLOCK", 7)
    out = in_files.zeros(*memory.x.shape)
    mapped = records.records(x, y, index, out=out, store=in_files)
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
    release_calibration = labels.release_calibration
    monkeypatch.setattr(labels, "release_calibration", lambda *args: (
        lines.append(args), release_calibration(*args))[1])
    assert is_mapped(records.encoded(frames, schema).x)
    with pytest.warns(UserWarning, match="delta"):
        mapped = train(frames, schema, epsilon=4.0, delta=1e-3, key=key)
    assert np.array_equal(mapped.weights, memory.weights)
    for one in lines[0][2:5]:  # scores, labels and weights
        assert is_mapped(one), "nothing of all rows stays in memory"


# --- rows that are cut farther out ---


@pytest.mark.parametrize("cut", [1.0, 2.3])
def test_stretched_moments_and_floor_cut_rows_at_that_length_and_divide_by_it(cut):
    """(m, m^2 + L^2 v) and L^2 floor are rows over L sqrt(d) deviations, cut at 1."""
    rng = np.random.default_rng(0)
    x, floor = rng.uniform(-1, 1, (200, 5)), 0.01
    mean = rng.uniform(-0.3, 0.3, 5)
    moments = Moments(mean, mean**2 + rng.uniform(0.0, 0.1, 5), 0.5)
    actual = records.scaled(x, records.stretched(moments, cut), cut**2 * floor)
    rows = (x - mean) / np.sqrt(moments.second - mean**2 + floor) / (cut * math.sqrt(5))
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(actual[:, :-1], rows / np.maximum(length, 1), atol=1e-6)
    assert (length > 1).any()
