"""Names of persons: exact, the same from every kind of table and wherever owners are read."""

import decimal
import enum
import fractions
import uuid

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants.between import COLLIDING
from jaxminimax.apps.commands import COMMANDS, parser_of
from jaxminimax.apps.tables import Category, Number, Schema, files, scorer
from jaxminimax.apps.tables.records import by_person
from jaxminimax.base.identity import persons
from jaxminimax.estimators import PrivateAUCClassifier, PrivateFairClassifier

LARGE = 1_700_000_000_000_000_000  # floats are 256 apart there
SCHEMA = Schema({"x": Number(-1, 1)}, "y", "1", owner="who", most=2)


def cells(*values):
    return np.fromiter(values, object, len(values))


# --- names ---


def test_a_name_is_exact_text():
    given = [1, np.uint8(1), "1", decimal.Decimal("1.0"), 1.0, b"1", "1.0", " 1", "01", "true",
             2**53 + 1, 2**53, -(2**64), uuid.UUID(int=7), str(uuid.UUID(int=7)), "\u00e9",
             "e\u0301", b"\xe9", "a", "a\0", "a ", "A", np.str_("a")]
    names, number = persons(given)
    assert [names[k] for k in number] == [
        "1", "1", "1", "1", "1", "1", "1.0", " 1", "01", "true", "9007199254740993",
        "9007199254740992", "-18446744073709551616", *[str(uuid.UUID(int=7))] * 2, "\u00e9",
        "e\u0301", "\udce9", "a", "a\0", "a ", "A", "a"]
    assert names[:4] == ["-18446744073709551616", "1", "9007199254740992", "9007199254740993"]
    assert names[4:] == sorted(names[4:])


def test_a_type_with_words_of_its_own_changes_no_name():
    class Who(str, enum.Enum):  # noqa: UP042
        A = "a"

    class Seven(int):
        def __int__(self):
            return 8

        __str__ = __repr__ = lambda self: "eight"

    assert persons([Who.A, "a", Seven(7), 7])[0] == ["7", "a"]


def test_names_of_all_bytes_differ():
    given = [bytes([k, j]) for k in range(0, 256, 3) for j in range(256)]
    assert len(persons(given)[0]) == len(given)


@pytest.mark.parametrize("kind", [
    list, tuple, np.array, pd.Series, pl.Series, pa.array, pd.Index,
    lambda x: pd.Series(x, dtype="Int64"), lambda x: pd.Series(x, dtype="category"),
    lambda x: pd.Series(x, dtype=pd.ArrowDtype(pa.int64())), lambda x: pd.Series(x, dtype=object),
    lambda x: pl.Series(x, dtype=pl.Int128), lambda x: pl.Series(list(map(str, x))),
    lambda x: pl.Series(list(map(str, x)), dtype=pl.Categorical),
    lambda x: pd.Series(list(map(str, x))), lambda x: pd.Series(list(map(str, x)), dtype="string"),
    lambda x: np.array(list(map(str, x))), lambda x: np.array(list(map(str, x)), "S"),
    lambda x: np.array(list(map(str, x)), np.dtypes.StringDType()),
    lambda x: list(map(decimal.Decimal, x)), lambda x: pa.chunked_array([x[:7], x[7:]]),
    lambda x: pl.Series(list(map(decimal.Decimal, x)))])
def test_every_container_has_the_same_persons(kind):
    rng = np.random.default_rng(0)
    given = [*(LARGE + rng.integers(-300, 300, 400)).tolist(), -(2**63), 2**63 - 1, 0, 7, -7]
    want, rows = np.unique(given, return_inverse=True)
    names, number = persons(kind(given))
    assert names == list(map(str, want.tolist()))
    assert np.array_equal(number, rows)


@pytest.mark.parametrize("given", [
    np.array([2**64 - 1, 2**64 - 2], np.uint64), [2**64 + 1, 2**64], [2**63 + 1, -1],
    pa.array([2**64 - 1, 2**64 - 2], pa.uint64()), pl.Series([10**37 + 1, 10**37], dtype=pl.Int128),
    pa.array([decimal.Decimal(10**37), decimal.Decimal(10**37 + 1)]),
    pd.Series([2**70, 2**70 + 1])])
def test_integers_beyond_64_bits_are_persons_each(given):
    assert len(persons(given)[0]) == 2


def test_small_integers_as_floats_are_integers():
    for kind in (np.float64, np.float32, jnp.float32, object):
        names, number = persons(np.array([3.0, -0.0, 3.0], kind))
        assert (names, number.tolist()) == (["0", "3"], [1, 0, 1])
    assert persons([2.0**53 - 1])[0] == [str(2**53 - 1)]


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT, np.float32("nan"), "", b"",
                                     decimal.Decimal("nan"), decimal.Decimal("sNaN")])
def test_a_missing_owner_is_refused_with_its_row(missing):
    for column in (cells("a", "b", missing, "c"), ["a", "b", missing, "c"]):
        with pytest.raises(ValueError, match=r"row 2 of owners .* has no owner"):
            persons(column)


@pytest.mark.parametrize("column", [
    pl.Series([LARGE, LARGE + 1, None]), pd.Series([LARGE, LARGE + 1, None], dtype="Int64"),
    pa.array([LARGE, LARGE + 1, None]), pd.Series(["a", "b", None]), pl.Series(["a", "b", None])])
def test_integers_beside_a_missing_owner_are_not_rounded_first(column):
    with pytest.raises(ValueError, match=r"row 2 of owners .* has no owner"):
        persons(column)


@pytest.mark.parametrize("values", [[7, LARGE, 0, 0], ["a", "b", "N/A", "N/A"], [7.0, 5.0, 0, 0]])
def test_an_owner_under_a_mask_is_missing(values):
    given = np.ma.array(values, mask=[False, False, True, True])
    with pytest.raises(ValueError, match=r"row 2 of owners .* has no owner"):
        persons(given)
    assert persons(given[:2])[0] == persons(values[:2])[0]
    schema = Schema({"x": Category(tuple(values[:3:2]))}, "y", "1")
    assert schema.features({"x": given}).ravel().tolist() == (
        schema.features({"x": [*values[:2], None, None]}).ravel().tolist())


@pytest.mark.parametrize("owner", [
    1.5, 2.0**53, -(2.0**53), float("inf"), np.float32(2**24), np.float16(2**11), 1j, True,
    np.bool_(False), [1], pd.Timestamp("2024-01-01"), np.datetime64("2024-01-01"),
    fractions.Fraction(71, 3), decimal.Decimal("1.5"), decimal.Decimal("inf"),
    decimal.Decimal("1e99999")])
def test_owners_that_name_nobody_exactly_are_refused_with_their_row_and_without_the_cell(owner):
    with pytest.raises(ValueError, match=r"row 1 of owners .* of type") as refused:
        persons(cells("a", owner))
    assert str(owner) not in str(refused.value)
    with pytest.raises(ValueError, match=r"row 1 of owners .* of type int"):
        persons(["a", 10**5000])  # which Python does not print


@pytest.mark.parametrize("column", [
    np.array([1.0, 2.0**53]), np.array([1.0, 2.0**24], np.float32), pd.Series([LARGE, None]),
    pd.Series(np.array([1.0, 2.0**24], np.float32), dtype="category"),
    pl.Series([1.0, 2.0**24], dtype=pl.Float32), pa.array([1.0, 2.0**24], pa.float32()),
    np.array([True, False]), pd.to_datetime(pd.Series(["2024-01-01"])), [], np.zeros((2, 2)),
    np.array(["2024-01-01"], "datetime64[ns]"), pl.Series([True]), np.array([1j])])
def test_columns_that_name_nobody_exactly_are_refused(column):
    with pytest.raises(ValueError, match="owners"):
        persons(column)


# --- names that short hashes confuse ---


@pytest.fixture(params=COLLIDING)
def colliding(request):
    """Owners, of whom each has a row like those of another one with the same hash."""
    shorten, pairs = COLLIDING[request.param]
    assert all(shorten(one) == shorten(other) for one, other in pairs)
    names = [name for pair in pairs for name in pair]
    return [*names, *names[::-1]]


def seen_by(train):
    """Numbers of records for which `train` chooses its settings; nothing else happens."""
    seen = []

    def chosen(n, *_, **__):
        seen.append(n)
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        for name in ("jaxminimax.apps.tables.rule.defaults",
                     "jaxminimax.apps.tables.training.defaults",
                     "jaxminimax.apps.tables.fair.fair_defaults",
                     "jaxminimax.apps.tables.check.counts_query"):
            patch.setattr(name, chosen)
        with pytest.raises(ZeroDivisionError):
            train()
    return seen


def test_names_with_one_hash_are_persons_each_wherever_owners_are_read(colliding, tmp_path):
    people, rows = len(set(colliding)), len(colliding)
    names, number = persons(colliding)
    assert [names[k] for k in number] == colliding
    assert len(names) == people
    index = by_person(rows, colliding, 2)
    assert all(len({colliding[row] for row in own}) == 1 for own in index)
    made = jmm.problems.by_person(np.arange(rows), colliding, 2, people=sorted(set(colliding)))
    assert sorted(map(sorted, made.rows.tolist())) == sorted(map(sorted, index.tolist()))
    held = files.held_out(rows, colliding, 0.5, 0)
    assert held.sum() == rows / 2
    assert not {colliding[k] for k in np.flatnonzero(held)} & {
        colliding[k] for k in np.flatnonzero(~held)}

    x, y = np.linspace(-1, 1, rows), np.arange(rows) % 2
    frame = {"who": colliding, "x": x, "y": y}
    pd.DataFrame(frame).to_csv(tmp_path / "t.csv", index=False)
    asked = {"epsilon": 1.0, "delta": 1e-3}
    for table in (frame, pd.DataFrame(frame), files.read(tmp_path / "t.csv")):
        assert seen_by(lambda table=table: jmm.tables.train(table, SCHEMA, **asked)) == [people]
    for form, more in ((PrivateAUCClassifier, {}), (PrivateFairClassifier, {"groups": y})):
        model = form(bounds=(-1.0, 1.0), **asked)
        assert seen_by(lambda model=model, more=more: model.fit(
            x[:, None], y, owners=colliding, **more)) == [people]
    words = [str(tmp_path / "t.csv"), "--label", "y", "--positive", "1", "--numeric", "x=-1:1",
             "--owner", "who", "--most", "2", "--epsilon", "1", "--delta", "1e-3"]
    for command in ("train", "check"):
        args = parser_of("").parse_args([command, *words])
        assert seen_by(lambda args=args: COMMANDS[args.command](args)) == [people]


# --- where they are used ---


def test_large_integers_are_persons_each_wherever_owners_are_read():
    ids = LARGE + np.arange(400)
    x, y = np.linspace(-1, 1, 400)[:, None], np.arange(400) % 2
    assert len(by_person(400, ids, 5)) == 400
    assert len(jmm.problems.by_person(np.zeros(400), pl.Series(ids), 1).present) == 400
    assert files.held_out(400, ids, 0.3, 0).sum() == 120
    how = {"epsilon": 1.0, "delta": 1e-4, "bounds": (-1.0, 1.0), "random_state": 0}
    for kind, more in ((PrivateAUCClassifier, {}), (PrivateFairClassifier, {"groups": y})):
        seen = []

        def chosen(n, *_, seen=seen, **__):
            seen.append(n)
            raise ZeroDivisionError  # nothing but the number of records is looked at

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("jaxminimax.apps.tables.rule.defaults", chosen)
            patch.setattr("jaxminimax.apps.tables.fair.fair_defaults", chosen)
            with pytest.raises(ZeroDivisionError):
                kind(**how).fit(x, y, owners=ids, **more)
        assert seen == [400]


def test_owners_of_another_number_of_rows_are_refused():
    for count in (3, 5):
        with pytest.raises(ValueError, match=f"4 rows, got {count}"):
            by_person(4, np.arange(count), 1)


def test_persons_are_listed_by_name():
    made = jmm.problems.by_person(np.arange(3.0), [LARGE, LARGE + 1, LARGE], 2,
                                  people=[str(LARGE + 1), 5, str(LARGE)])
    assert made.rows.tolist() == [[1, 1], [0, 0], [0, 2]]
    for people in (["1", 1, 2], ["2"]):
        with pytest.raises(ValueError, match="every owner once"):
            jmm.problems.by_person(np.zeros(2), [1, 2], 1, people=people)


def test_a_category_of_a_large_integer_is_its_own_cell():
    for column in (LARGE + np.arange(3), pl.Series([LARGE, LARGE + 1, None]),
                   pd.Series([LARGE, LARGE + 1, None], dtype="Int64"),
                   [str(LARGE), f"{LARGE + 1}.0", ""], [10**5000, LARGE + 1, 2.0**63]):
        table = {"x": column}
        for value in (LARGE + 1, str(LARGE + 1)):
            schema = Schema({"x": Category((value,))}, "y", "1")
            assert schema.features(table).ravel().tolist() == [0, 1, 0]


# --- files ---


def table(owners):
    rng = np.random.default_rng(len(owners))
    return {"who": owners, "x": rng.uniform(-1, 1, len(owners)), "y": rng.integers(2, size=len(
        owners))}


def readings(folder, owners):
    """One table as each kind of file and frame."""
    made = table(owners)
    frame = pd.DataFrame(made)
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    return (files.read(folder / "t.csv"), files.read(folder / "t.parquet"), frame, made,
            pl.DataFrame(made), pa.table(made))


@pytest.mark.parametrize("make", [
    lambda k: LARGE + 3 * k, lambda k: -k, str, lambda k: f"{k:05d}", lambda k: f"{k}.0",
    lambda k: " " * (k % 3) + str(k // 3), lambda k: str(uuid.UUID(int=k**20)),
    lambda k: chr(0x3B1 + k % 25) + "\u0301" * (k // 25), lambda k: f'"{k}", \n{k % 7}',
    lambda k: ("nan", "NA", "null", "true", "1e3", "0x1F", "inf", "-0")[k % 8] + "!" * (k // 8)])
def test_every_kind_of_table_has_the_same_persons_to_the_bit(tmp_path, make):
    rng = np.random.default_rng(1)
    owners = [make(int(k)) for k in rng.integers(40, size=200)]
    people = len(set(owners))
    first, *others = (
        (by_person(200, SCHEMA.owners(one), 2), files.held_out(200, SCHEMA.owners(one), 0.3, 1))
        for one in readings(tmp_path, owners))
    assert len(first[0]) == people
    for index, held in others:
        assert np.array_equal(index, first[0])
        assert np.array_equal(held, first[1])


def test_bytes_that_are_no_text_are_persons_each_in_a_csv_file(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"who,x,y\n\xe9,1,0\n\xe8,0,1\na\0b,0,0\na\0c,0,1\n")
    owners = SCHEMA.owners(files.read(tmp_path / "t.csv"))
    assert len(persons(owners)[0]) == 4
    pd.DataFrame({"who": [b"\xe9", b"\xe8", b"a\0b", b"a\0c"]}).to_parquet(tmp_path / "t.parquet")
    assert persons(SCHEMA.owners(files.read(tmp_path / "t.parquet")))[0] == persons(owners)[0]


@pytest.mark.parametrize(("header", "names"), [("a, who, x", ["1"]), ("a,who, x", ["1", " 1"])])
def test_spaces_after_separators_are_of_the_file_if_all_of_its_header_are(tmp_path, header, names):
    (tmp_path / "t.csv").write_text(f"{header}\n0, 1, 0\n0,1,0\n")
    assert persons(files.read(tmp_path / "t.csv")["who"])[0] == names


def test_every_line_of_a_csv_file_is_a_record(tmp_path):
    """So their number depends on nobody's cells."""
    for line in ("1,0", "", "   ", ",", "1", "\ufeff1,0"):
        (tmp_path / "t.csv").write_text(f"\nx,y\n0,1\n{line}\n1,1\n", encoding="utf-8")
        frame = files.read(tmp_path / "t.csv")
        assert len(frame) == 3
        assert frame["x"].tolist()[::2] == ["0", "1"]
    (tmp_path / "t.csv").write_text("who,x,y\na,0,1\n\nb,1,1\n")
    with pytest.raises(ValueError, match=r"row 1 of owners .* has no owner"):
        persons(SCHEMA.owners(files.read(tmp_path / "t.csv")))


@pytest.mark.parametrize("text", [
    '"who","x","y"\n"1","a",0.1,0\n"2","a",0.2,1\n', "who,x,y\na,1,0,\nb,1,0,\n",
    "who,x,y\nSmith, John,1,0\nb,1,0\n", "who,x,y\na,1,0\na,1,0,\n", "who,x,y\n\xe9,1,0,2,3\n"])
def test_lines_with_more_cells_than_the_header_are_refused(tmp_path, text):
    """Cells would be another column's, and a row's number the name of its person."""
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"one cell more|saw 4"):
        files.read(tmp_path / "t.csv")


# --- errors ---


@pytest.mark.parametrize("table", [
    [{"x": "a secret"}], np.array([["a secret"]]), "a secret", None])
def test_what_is_no_table_is_refused_without_a_cell(table):
    made = scorer.Scorer(Schema({"x": Number(0, 1)}, "y", "1"), np.zeros(2), None, None, None)
    with pytest.raises(ValueError, match="data frame or a dictionary of columns") as refused:
        made.decision_function(table)
    assert "secret" not in str(refused.value)
