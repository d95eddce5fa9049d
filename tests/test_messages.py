"""No message, note, report or log prints a cell: of a table as any file, or as headers.

A table may lack its header line, so that its first record becomes the names of its columns; a file
may be another one than was meant. Every door is tried with such tables. Below is the list of all
that messages print of what a user gives, found by a search of the source.
"""

import ast
import bz2
import contextlib
import gzip
import io
import json
import logging
import pathlib
import pickle
import re
import sqlite3
import traceback
import warnings
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import Category, Number, Schema, Scorer, files, notes, statistics
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.estimators import (
    PrivateAUCClassifier,
    PrivateClassifier,
    PrivateFairClassifier,
    PrivateRegressor,
    PrivateWorstGroupClassifier,
)

ROOT = pathlib.Path(__file__).parents[1] / "jaxminimax"
# parts of cells, none of which is a word of the library
SECRETS = ("Arendt", "Sokrates", "Kreuzberg", "Piraeus", "hannah@", "diabet", "1906-10", "73125.5")
RECORDS = [["Hannah Arendt", "hannah@example.org", "Kreuzberg", "1906-10-14", "diabetes",
            "73125.5"], ["Sokrates", "", "Piraeus", "", "none", "73125.5"]] * 6
WORDS = [row[:5] for row in RECORDS]  # without a number
NAMES = ["who", "mail", "place", "born", "ill", "income"]
SCHEMA = Schema({"age": Number(18, 90), "job": Category(("desk", "field"))}, "sick", "1",
                owner="person", most=2)
HOW = {"epsilon": 1.0, "delta": 1e-6}
TOML = """
label = {name = "sick", positive = "1"}
columns = {age = {range = [18, 90]}, job = {categories = ["desk", "field"]}}
"""


def csv_of(rows, separator=","):
    return "".join(separator.join(row) + "\n" for row in rows).encode()


def zipped(name):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, csv_of(RECORDS))
    return file.getvalue()


def parquet(names):
    file = io.BytesIO()
    pa.parquet.write_table(pa.table({name: [row[k] for row in WORDS]
                                     for k, name in enumerate(names)}), file)
    return file.getvalue()


def database():
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE t (who TEXT, place TEXT)")
    base.executemany("INSERT INTO t VALUES (?, ?)", [(row[0], row[2]) for row in RECORDS])
    return base.serialize()


OBJECTS = [dict(zip(NAMES, row, strict=True)) for row in RECORDS]
FILES = {  # name, content, and what the message says of it
    "nohead.csv": (csv_of(WORDS), "none declared"), "numbers.csv": (csv_of(RECORDS), "numbers"),
    "semicolon.csv": (csv_of(WORDS, ";"), "none declared"), "tab.txt": (csv_of(WORDS, "\t"), ""),
    "long.csv": (csv_of([WORDS[0], RECORDS[0]]), "none declared|cell|saw"),
    "twice.csv": (csv_of([WORDS[0] + WORDS[0]]), "columns 1, 2, 3"),
    "open.csv": (csv_of(WORDS) + b'"Hannah Arendt', "none declared|quote"),
    "return.csv": (csv_of(WORDS).replace(b"Piraeus", b"Pi\rraeus"), "carriage return"),
    "bytes.csv": (csv_of(WORDS).replace(b"Piraeus", b"Piraeus\xff\xfe"), "none declared"),
    "nul.csv": (csv_of(WORDS).replace(b"Piraeus", b"Piraeus\0"), "none declared|NUL"),
    "a.json": (json.dumps(OBJECTS).encode(), "JSON"),
    "indented.json": (json.dumps(OBJECTS, indent=1).encode(), "JSON"),
    "columns.json": (json.dumps({n: [r[k] for r in RECORDS] for k, n in enumerate(NAMES)}).encode(),
                     "JSON"),
    "lists.json": (json.dumps(RECORDS).encode(), "JSON"),
    "a.jsonl": (b"".join(json.dumps(row).encode() + b"\n" for row in OBJECTS), "JSON"),
    "bom.json": (b"\xef\xbb\xbf" + json.dumps(OBJECTS).encode(), "JSON"),
    "book.xlsx": (zipped("xl/workbook.xml"), "Excel"),
    "old.xls": (b"\xd0\xcf\x11\xe0" + csv_of(WORDS), "Excel"),
    "a.zip": (zipped("a.csv"), "zip archive"),
    "a.csv.gz": (gzip.compress(csv_of(WORDS)), "compressed"),
    "a.csv.bz2": (bz2.compress(csv_of(WORDS)), "compressed"),
    "wide.csv": (csv_of(WORDS).decode().encode("utf-16"), "UTF-16"),
    "wide_little.csv": (csv_of(WORDS).decode().encode("utf-16-le"), "UTF-16"),
    "wide_big.csv": (csv_of(WORDS).decode().encode("utf-16-be"), "UTF-16"),
    "really_parquet.csv": (parquet(NAMES[:5]), "Parquet"),
    "really.parquet": (csv_of(WORDS), "Parquet"),
    "json.parquet": (json.dumps(OBJECTS).encode(), "JSON"),
    "cut.parquet": (parquet(NAMES[:5])[:-20], "Parquet"),
    "records.parquet": (parquet(WORDS[0]), "none declared"),
    "base.csv": (database(), "SQLite"), "paper.csv": (b"%PDF-1.7\n" + csv_of(WORDS), "PDF"),
    "page.csv": (b"\n<!DOCTYPE html><td>Hannah Arendt</td>", "HTML"),
    "page.xml": (b"<?xml version='1.0'?><who>Hannah Arendt</who>", "XML"),
    "frame.pkl": (pickle.dumps(OBJECTS), "another program"), "empty.csv": (b"", "header line"),
    "keys.toml": (b"who = 'Hannah Arendt'\nwho = 'Sokrates'\n", ""),
}


def model():
    return Scorer(Schema(SCHEMA.columns, "sick", "1"), np.arange(4.0),
                  Moments(np.zeros(3), np.ones(3), 0.5), 0.01, {"epsilon": 1.0})


@contextlib.contextmanager
def silent(caplog, capfd):
    """Collects everything that is printed, logged, warned of or raised, with the whole chain."""
    heard = []
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            yield heard
        except Exception as error:
            # the lines of the source, and what is shown of an error and of its causes
            heard += traceback.format_exception(error)
    out, err = capfd.readouterr()
    heard += [out, err, caplog.text, *(str(w.message) for w in warned)]
    text = "\n".join(map(str, heard))
    leaked = [word for word in SECRETS if word in text]
    assert not leaked, text[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_records_is_refused_without_a_cell(name, tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.chdir(tmp_path)
    content, words = FILES[name]
    pathlib.Path(name).write_bytes(content)
    pathlib.Path("s.toml").write_text(TOML)
    model().save("model.json")
    declared = ["--label", "sick", "--positive", "1", "--numeric", "age=18:90",
                "--owner", "person"]
    budget = ["--epsilon", "1", "--delta", "1e-6"]
    for line in (["check", name, "--schema", "s.toml"], ["check", name], ["check", name, *declared],
                 ["check", name, "--label", "sick", "--positive", "1", "--numeric", "age"],
                 ["train", name, "--schema", "s.toml", *budget, "--out", "o"],
                 ["train", name, *budget], ["train", name, *declared, *budget],
                 ["train", name, "--schema", "s.toml", *budget, "--test-fraction", ".2"],
                 ["train", "t.csv", "--schema", name, *budget], ["predict", "model.json", name],
                 ["predict", "model.json", name, "--id", "person"], ["predict", name, name],
                 ["ledger", name],
                 ["check", name, "--schema", "s.toml", *budget, "--ledger", name]):
        with silent(caplog, capfd) as heard:
            assert main.main(line) == 2
            heard.append(err := capfd.readouterr().err)
            if line == ["check", name, "--schema", "s.toml"]:
                assert re.search(words, err), err
    for read in (lambda: files.read(name), lambda: list(files.pieces(name)),
                 lambda: SCHEMA.features(files.read(name)),
                 lambda: files.Frames(name, SCHEMA.numeric, SCHEMA.names),
                 lambda: jmm.tables.train(files.Frames(name, (), ()), SCHEMA, **HOW),
                 lambda: jmm.tables.train(files.read(name), SCHEMA, **HOW),
                 lambda: Scorer.load(name), lambda: Schema.from_toml(name),
                 lambda: jmm.accounting.Ledger(name)):
        with silent(caplog, capfd):
            read()


def frames():
    """Tables whose columns have a record for names, and such whose cells are text."""
    headless = pd.read_csv(io.BytesIO(csv_of(WORDS)))
    yield "a record for names", headless
    yield "numbers, too", pd.read_csv(io.BytesIO(csv_of(RECORDS)))
    yield "of a record for names, numbers", pd.DataFrame(
        np.arange(60.0).reshape(12, 5), columns=WORDS[0])
    yield "text", pd.DataFrame(RECORDS, columns=NAMES)
    yield "a dictionary", dict(zip(WORDS[0], map(list, zip(*WORDS, strict=True)), strict=True))
    yield "of pyarrow", pa.table({name: [row[k] for row in WORDS]
                                  for k, name in enumerate(WORDS[0])})
    yield "lists", RECORDS
    yield "an array", np.array(RECORDS, object)
    yield "a dictionary of records", dict(enumerate(RECORDS))


ESTIMATORS = (PrivateAUCClassifier, PrivateClassifier, PrivateFairClassifier, PrivateRegressor,
              PrivateWorstGroupClassifier)


def doors(table):
    """Every way in for a table, or for a part of it in the place of another argument."""
    column = [row[0] for row in RECORDS]
    number = [float(k % 2) for k in range(12)]
    how = HOW
    for kind in ESTIMATORS:
        more = {"label_range": (0, 1)} if kind is PrivateRegressor else {}
        plain = pd.DataFrame({"age": np.linspace(18, 90, 12), "job": ["desk", "field"] * 6})
        for schema in (None, SCHEMA, SCHEMA.columns):
            for given in ({"X": table, "y": number}, {"X": table, "y": column},
                          {"X": plain, "y": column},
                          {"X": plain, "y": number, "groups": column[:-1]},
                          {"X": plain, "y": number, "groups": table},
                          {"X": plain, "y": number, "owners": table},
                          {"X": table, "y": number, "groups": column, "owners": column}):
                yield lambda kind=kind, schema=schema, given=given, more=more: kind(
                    schema=schema, bounds=(0, 1), **more, **how).fit(**given)
        for wrong in ({"groups": column}, {"bounds": table}, {"bounds": column}, {"most": column},
                      {"people": table}, {"schema": table}, {"class_weight": table},
                      {"unit": table}, {"random_state": column}, {"ledger": table},
                      {"epsilon": column}, {"delta": table}, {"label_range": column},
                      {"weight": column}):
            if set(wrong) <= set(kind().get_params()):
                yield lambda kind=kind, wrong=wrong, more=more: kind(**{
                    "bounds": (0, 1), **more, **how, **wrong}).fit(np.eye(12)[:, :2], number)
    for part in (SCHEMA.features, SCHEMA.labels, SCHEMA.owners, SCHEMA.read, SCHEMA.odd,
                 model().decision_function, model().predict, model().predict_proba):
        yield lambda part=part: part(table)
    yield lambda: Schema.from_dict(table)
    yield lambda: Schema.from_dict({"label": {"name": "sick", "positive": "1"}, "columns": table})
    yield lambda: Schema.from_dict({"label": table, "columns": {"age": {"range": column}}})
    yield lambda: Schema.from_dict({"label": {"name": "sick", "positive": column},
                                    "columns": {"age": {"range": table}}})
    yield lambda: Schema({"age": column}, "sick", "1")
    yield lambda: Schema({"age": Number(*column[:2])}, "sick", "1")
    yield lambda: Schema(SCHEMA.columns, "sick", target=table)
    yield lambda: Schema(SCHEMA.columns, "sick", "1", owner="person", most=column)
    yield lambda: Category(tuple(column))
    yield lambda: jmm.tables.train(table, SCHEMA, **how)
    yield lambda: jmm.tables.train(table, Schema(SCHEMA.columns, "sick", "1"), method="a", **how)
    for name in ("epsilon", "delta", "people", "method", "unit", "name", "folder", "mesh",
                 "shards"):
        yield lambda name=name: jmm.tables.train(
            {"age": number, "job": column, "sick": number}, Schema(SCHEMA.columns, "sick", "1"),
            **{**how, name: column})
    yield lambda: jmm.tables.defaults(column, SCHEMA, **how)
    yield lambda: jmm.problems.by_person(np.eye(12), column[:-1], 2)
    if not isinstance(table, dict):  # names of a pytree are the program's
        yield lambda: jmm.problems.by_person(table, column, 2)
    yield lambda: jmm.problems.by_person(np.eye(12), column, column)
    for name in ("key", "z", "data", "hyper"):
        yield lambda name=name: jmm.run(**{"key": jmm.noise.secret_key(), "z": (), "data": column,
                                           "hyper": None, "algorithm": jmm.sgda, "problem": None,
                                           name: column})
    yield lambda: jmm.Repeat(query=jmm.Query(clip=column, population=table), times=column)
    yield lambda: jmm.epsilon(column, table)
    yield lambda: jmm.accounting.Ledger("l.json", epsilon=column, delta=1e-6)
    yield lambda: jmm.accounting.Ledger("l.json", epsilon=1.0, delta=1e-6, people=column)
    yield lambda: jmm.accounting.Ledger("l.json", epsilon=1.0, delta=1e-6, filter=column)
    yield lambda: jmm.accounting.Ledger("l.json", **HOW).reserve(column, name=column)
    yield lambda: files.held_out(12, [*column[:-1], None], 0.5, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "table"), list(frames()),
                         ids=lambda x: x if isinstance(x, str) else "")
def test_a_table_with_records_for_names_is_told_without_a_cell(what, table, tmp_path, monkeypatch,
                                                               caplog, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(statistics.sums, "compiled_release", None)  # nothing is released
    for door in doors(table):
        with silent(caplog, capfd):
            door()


@pytest.mark.slow
def test_a_fitted_model_tells_of_other_columns_without_their_names(caplog, capfd):
    X = pd.DataFrame(np.random.default_rng(0).uniform(size=(40, 2)), columns=["age", "income"])
    one = PrivateAUCClassifier(4.0, 1e-4, bounds=(0, 1), random_state=0).fit(X, X.age > 0.5)
    for table in (pd.DataFrame(np.eye(2), columns=WORDS[0][:2]), pd.DataFrame([WORDS[0][:2]])):
        for read in (one.predict, one.predict_proba, one.decision_function):
            with silent(caplog, capfd), pytest.raises(ValueError, match=r"none of the|has text"):
                read(table)
    with pytest.raises(ValueError, match="feature names should match"):  # a declared one is there
        one.predict(X.rename(columns={"income": "salary"}))
    with pytest.raises(ValueError, match="same order"):
        one.predict(X[["income", "age"]])


def test_notes_print_names_where_a_declared_one_is_among_them():
    for names, words in ((["age", "job", "town"], "undeclared columns: town"),
                         (WORDS[0], "undeclared columns: 5 columns"),
                         (["age", *RECORDS[0]], "undeclared columns: 6 columns")):
        said = " ".join(map(str, notes.before(SCHEMA, 400, names)))
        assert words in said
        assert not [word for word in SECRETS if word in said]


def test_a_released_number_of_another_file_is_not_printed(tmp_path):
    with Unfinished(tmp_path / "run") as job:
        job.promise(np.zeros(3), "settings")
    (tmp_path / "run" / "moments").write_text(json.dumps(OBJECTS))
    with Unfinished(tmp_path / "run") as job, pytest.raises(ValueError, match="object") as refused:
        job.once("moments", dict)
    assert not [word for word in SECRETS if word in str(refused.value)]


# --- the list ---

CALLS = {"warn", "Note", "_refuse", "_refuse_as", "print"}  # that make messages, besides errors
KINDS = {"len", "np.shape", "checks.describe", "describe", "kinds.listed", "listed"}
FACTS = {"shape", "dtype", "__name__", "__qualname__", "strerror", "ndim"}


# what messages print of what a user gives: names that are declared or are the program's, words
# of the command, settings, paths, counts, and text that was checked before
PRINTED = {
    "__main__": (
        'args.command | error | noted'),
    "accounting": (
        "'' if replacement else ' without replacement' | ', '.join(stated) | amount"
        " | batch | delta!r | earlier | entry.name!r | entry['spent'] | fixed!r | folder"
        " | kind | limit_in_words(proven, float(delta)) | loss.kind!r | n | name | name!r"
        " | people | population | rule.remedy(amount, remaining) | self._file.path"
        " | self.path | self.size | shares!r | stored[name]!r | t!r | value!r | what"
        " | wrong | z!r"),
    "algorithms": (
        "', '.join(unknown) | _name(hyper.inner) | _name(inner)"
        " | diameter!r | dim!r | factories | factories.removesuffix(' for each player')"
        " | geometry!r | hyper.losses.sizes | hyper.query.groups!r | hyper.query.sampling!r"
        " | hyper.query.sizes | hyper.rounds | k | math.isqrt(2 ** 30 - 1)"
        " | math.isqrt(2 ** 31 - 1) | name | player | population | query.sampling!r"
        " | radius!r | sorted(lengths)"),
    "audit": (
        '10 * (k + 1) | int(np.sum(differs)) | k | missing | pair!r | query.sampling!r | runs'
        ' | shapes[0] | shapes[1]'),
    "base": (
        "', '.join(('mechanism', *functions)) | ', '.join(choices) | 2 * size"
        " | _holder(path) | argument | call_form | contents | dtype | error | expected"
        " | expected_name | first_name | fix | folder | generator"
        " | jax.tree.map(np.shape, actual) | jax.tree.map(np.shape, expected)"
        " | jnp.result_type(x) | leaf_name | list_name | low | name | os.fspath(target)"
        " | passed_name | path | place | signature | span | status.st_uid | text | words"),
    "checkup": (
        'described | lengths | n'),
    "accountant": "', '.join(NAMES) | args.algorithm!r | args.batch_size!r | expected | name",
    "drivers": (
        "' not' * (not grouped) | ', '.join(names) | ', '.join(sorted(accepted))"
        " | ', '.join(unknown) | 'labels' if groups else 'n'"
        " | 'with' if primal else 'without' | _BEHIND | _NO_TICKET | budgets | count"
        " | data.grouped | data.population | described | described!r | difference | error"
        " | grouped | jax.random.key_impl(key) | leading | lengths"
        " | mechanism.query.population * mechanism.parts | n | name | name!r | not_held"
        " | number | of!r | os.fspath(path)!r | parts | path | places[0] | places[1]"
        " | query.population | run.entry.name!r | run.settings.iterations - first"
        " | self._manager.directory | self.limits.times | settings | size | stated | step"),
    "estimators": (
        "', '.join(sorted(refused)) | kind | names | rows | self.schema.most"
        ' | self.schema.owner!r'),
    "gradients": (
        'clip!r | memory!r | rows | strategy!r'),
    "mechanism": (
        "' or eta' if asked.eta < 1 else '' | ', '.join(offered) | MOST_BANDS"
        " | MOST_INDICES | TOGETHER | _LONGEST | _SELDOM | banded.bands"
        " | bands | batch | clip!r | description.MOST_STEPS | distance!r | enough | exact!r"
        " | inner_steps(self, parts) | longest | min(self.sizes) | most_leaves | n | name"
        " | neighbours!r"
        " | parameters | parts | parts!r | phase + 1 | population | query.sampling!r"
        " | releases | repeat.parts | rows | sampling!r"
        " | sampling.rows_read(query.population) | self!r | self.adaptive!r | self.again"
        " | self.alone!r | self.bands | self.because!r | self.capacity | self.clip!r"
        " | self.distance!r | self.each!r | self.in_turn | self.joint!r | self.lipschitz!r"
        " | self.modulus!r | self.most | self.parts | self.parts!r | self.phases"
        " | self.prox!r | self.quantile!r | self.rate!r | self.replacement!r"
        " | self.sampling!r | self.steps | sizes!r | slots | steps | times | value!r | x!r | z!r"),
    "metrics": (
        '[a.shape for a in arrays] | player'),
    "noise": (
        'MOST_INDICES | bits!r | p | size'),
    "placement": (
        "'two leading axes' if grouped else 'one leading axis' | AXIS!r"
        " | [_length(x) for x in leaves] | all_rows | all_rows // size | count | data.mesh"
        " | data.shards | devices | jax.process_count() | jax.random.key_impl(key)"
        " | jax.tree.map(lambda x: (x.shape, x.dtype.name), self.record) | leaf_name"
        " | lengths | mesh | mesh.axis_names | name | population | rows_in_all | shardings"
        " | shards | size | sorted(process_ids) | spec | type(x).__module__.split('.')[0]"),
    "planner": (
        "', '.join(_PLANNED) | ', '.join(map(flag_of, allowed)) | args.algorithm"
        " | args.algorithm!r | flag_of(name)"),
    "problems": (
        "', or one number,' * (classes == 2) | base.convex | base.random | base.smooth"
        " | classes | clip!r | count | counts.min() | counts.size - 1 | high!r"
        " | int(np.argmin(counts)) | jnp.result_type(x) | jnp.shape(x) | kind!r"
        " | labelled!r | labels.size | layout | lengths | low!r | name | prior!r | reach!r"
        " | rows | shape | shares!r"),
    "releases": (
        "2 ** 32 // kinds | _text(label) | _text(site.under)"
        " | _text(value.label) | answers | axes | caller | clip!r | data_argument!r"
        " | described | described(mechanism)[0]!r | e.primitive.name | error"
        " | groups_described!r | jnp.result_type(group) | jnp.result_type(spent)"
        " | jnp.result_type(v) | jnp.shape(v) | kind | kinds - 1 | last[0] | limit | line"
        " | losses.shape[2:] | mechanism.kind!r | mechanism.place | mechanism.population"
        " | name | named | num_coordinates | number | opened.data.described | p | path"
        " | place | place[1] | programs.line(e) | programs.line(equation) | promised!r"
        " | query.clip!r | query.groups!r | query.smooth!r | release | release.line | rows"
        " | settings | shape | size | spent | stream[0] | stream[1] | t | text | true!r"
        " | unwritten.pop() | use[-1] | x.primitive.name"),
    "tables": (
        "' '.join(inline) | ' '.join(sorted(twins))"
        " | ' before log(1 + x)' * self.log | ', '.join(kind.values[:_SHOWN])"
        " | ', '.join(schema.charged) | ', '.join(twins)"
        " | _GIVE_UP | _MANY | __name__!r | _more(kind.values) | _price(args, len(read()))"
        " | advice | alike[0]!r | args.name | columns.count(name)"
        " | count | empty!r | end | error | evidence"
        " | finding | folder | jax.process_count() | kind.width | length | lengths"
        " | list(self.columns) | match[0] | method!r | name | name!r"
        " | number | number * rows + long + 1 | pairs | path | people | population"
        " | problem | role!r | rows | schema.positive!r | self._folder"
        " | self.high!r | self.low!r | self.most | self.schema.label | self.target.width"
        " | shown | text | unknown | verb | word"),
}


def printed():
    """What messages print, by the part of the package, besides numbers by a format and kinds."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT / "apps" if "apps" in path.parts else ROOT).parts[0]
        part = part.removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "func", None)
            if not isinstance(node, ast.Raise) and (
                    getattr(name, "attr", getattr(name, "id", None)) not in CALLS):
                continue
            for one in ast.walk(node):
                if not isinstance(one, ast.FormattedValue) or one.format_spec is not None:
                    continue
                value = one.value
                if isinstance(value, ast.Attribute) and value.attr in FACTS:
                    continue
                if isinstance(value, ast.Call) and ast.unparse(value.func) in KINDS:
                    continue
                found.setdefault(part, set()).add(ast.unparse(value) + "!r" * (one.conversion > 0))
    return found


def test_all_that_messages_print_is_listed():
    """Whoever adds to the list makes sure that it is no cell, and no undeclared column's name."""
    found = {(part, value) for part, values in printed().items() for value in values}
    listed = {(part, value) for part, text in PRINTED.items() for value in text.split(" | ")}
    new, gone = sorted(found - listed), sorted(listed - found)
    assert new == [], "make sure that these are public, and add them to PRINTED"
    assert gone == [], "these are printed no more: remove them from PRINTED"


def test_nothing_that_holds_data_is_printed_but_its_kind():
    held = {"data", "records", "cells", "frame", "owners", "X", "y", "leaf", "labels", "values",
            "table", "batch_of", "cell"}
    for part, words in PRINTED.items():
        for word in words.split(" | "):
            root = re.split(r"[.\[(!]", word)[0]
            facts = {"data.mesh", "data.population", "data.shards", "data.grouped",
                     "labels.size", "records"} if part in {
                         "placement", "drivers", "problems"} else set()
            assert root not in held or word in facts, (part, word)
