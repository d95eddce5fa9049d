"""Files that the library reads back: what their published schemas do not allow is one error."""

import copy
import functools
import hashlib
import json
import math
import random
import typing

import jsonschema
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax.apps.tables import Category, DamagedFileError, Number, Schema, Scorer
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import saved_json
from jaxminimax.base.saved_json import FORMATS
from jaxminimax.base.types import Saddle
from jaxminimax.drivers import fingerprint

OF_RELEASE = functools.cache(fingerprint.hash_release)
COLUMNS = {"age": Number(18, 90), "gain": Number(0, 1e5, log=True, missing=True),
           "work": Category(("state", "private"))}
SCHEMA = Schema(COLUMNS, "y", ">50K", owner="who", most=3, groups="work", group_values=("state",))
KINDS = (SCHEMA, Schema(COLUMNS, "y", target=Category(("low", "middle", "high"))),
         Schema(COLUMNS, "y", target=Number(0, 120)))
PRIORS = (0.3, np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.4]))
ROWS = {"age": [18, 54, None], "gain": [0, 1e3, None], "work": ["state", "private", "?"]}
TOML = """
label = {name = "y", positive = ">50K"}
owner = {name = "who", most = 3}
groups = {name = "work", values = ["state", "private"], by_label = true}
[columns]
age = {range = [18, 90]}
gain = {range = [0, 1e5], log = true, missing = true}
debt = {range = "charged"}
work = {categories = ["state", 3, true, 2020-01-01]}
"""


def scorer(kind):
    rng = np.random.default_rng(0)
    outputs = (3,) if kind == 1 else ()
    width = SCHEMA.width
    return Scorer(KINDS[kind], rng.normal(size=(width + 1, *outputs)),
                  Moments(rng.uniform(-0.5, 0.5, width), np.ones(width), PRIORS[kind]), 0.01,
                  {"epsilon": 1.0}, group_losses={"state": 0.3})


def steps(times):
    return jmm.Repeat(times=times, query=jmm.Query(
        clip=Saddle(1.0, None), noise_multiplier=Saddle(60.0, None), population=1000))


def ledger(path, kind):
    opened = jmm.accounting.Ledger(path, epsilon=3.0, delta=1e-5, filter=kind)
    if kind is None:  # one run has all of it
        opened.reserve(jmm.accounting.calibrate_noise(steps(1), 3.0, 1e-5), name="a")
        return json.loads(path.read_text())
    opened.reserve(steps(1), name="a")
    opened.reserve(steps(2), name="b").close()
    return json.loads(path.read_text())


def remade(content):
    """A ledger whose checksum is that of what it holds."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "checksum": hashlib.sha256(text.encode()).hexdigest()}


class Model:
    """A model's file, and what is read of it."""

    name, part = "model", None

    def __init__(self, folder, kind):
        self.path = folder / "model.json"
        self.record = json.loads(json.dumps(scorer(kind).to_json()))

    def write(self, record):
        self.path.write_text(json.dumps(record))

    def read(self):
        one = Scorer.load(self.path)
        assert np.isfinite(one.weights).all()
        assert not np.isnan(one.decision_function(ROWS)).any()
        one.sql()


class Booked:
    """A ledger's file."""

    name, part = "ledger", None

    def __init__(self, folder, kind):
        self.path = folder / "ledger.json"
        self.record = ledger(self.path, ("renyi", "basic", None)[kind])

    def write(self, record):
        self.path.write_text(json.dumps(remade(record)))

    def read(self):
        book = jmm.accounting.Ledger(self.path)
        left = book.remaining()
        assert 0 <= left.share <= 1
        assert 0 <= left.epsilon < math.inf
        assert 0 <= book.odometer < math.inf
        str(book.statement())


@pytest.fixture(autouse=True)
def traced_once(monkeypatch):
    """For each key of a run, which is read often."""
    monkeypatch.setattr(fingerprint, "hash_release", OF_RELEASE)


class Run:
    """What a stopped run released, and its promise."""

    name = "run"
    PARTS: typing.ClassVar = {
             "moments": {"mean": [0.5, 1.0], "second": [1.0, 1.0], "prior": [0.5, 0.25, 0.25]},
             "promise.json": {"setting": "s", "version of a package, or device": ["0.10.2"],
                              "table, or order of its rows": ""},
             "preconditioner": {"matrix": [[1.0, 0.5], [0.5, 1.0]], "squares": [1.0]},
             "ranges": [[-1.0, 1.0], [0.0, 10]], "line": [[0.5, 0.25], 1.5], "losses": {"a": 0.5}}

    def __init__(self, folder, kind):
        self.folder = folder / "run"
        self.part = list(self.PARTS)[kind]
        with Unfinished(self.folder) as job:
            job.promise(np.zeros(3), "s")
            if self.part != "promise.json":
                job.once(self.part, lambda: self.PARTS[self.part])
        self.path = self.folder / self.part
        self.record = json.loads(self.path.read_text())

    def write(self, record):
        self.path.write_text(json.dumps(record))

    def read(self):
        with Unfinished(self.folder) as job:
            if self.part == "promise.json":  # which is another one, if it is whole
                assert isinstance(job._read(self.part), dict)
            else:
                job.promise(np.zeros(3), "s")
                job.once(self.part, lambda: None)


class Table:
    """A schema, by the same record as a TOML file gives."""

    name, part = "model", "table"

    def __init__(self, folder, kind):
        self.path = folder / "schema.toml"
        self.record = KINDS[kind].to_dict()

    def write(self, record):
        self.now = record

    def read(self):
        with saved_json.explained(self.path, "schema", "Correct it."):
            made = Schema.from_dict(self.now)
        assert Schema.from_dict(made.to_dict()) == made


CASES = [(kind, k) for kind, count in ((Model, 3), (Booked, 3), (Run, 6), (Table, 3))
         for k in range(count)]
HOSTILE = (None, True, False, 0, 1, -1, 3, 0.5, -50.0, -1e9, 1e155, 1e308, math.nan, math.inf,
           -math.inf, 10**22, 10**400, "", "1", "charged", "0 OR 1=1", [], [1, 2], [[1], [2]],
           [math.nan], ["1); DROP TABLE t"], {}, {"a": 1}, {"epsilon": -1.0})


def places(record, at=()):
    """Every place in a record."""
    if at:
        yield at
    inside = record.items() if isinstance(record, dict) else (
        enumerate(record) if isinstance(record, list) else ())
    for name, value in list(inside):
        yield from places(value, (*at, name))


def mutants(record, draw):
    """Records with one value that is another one, missing, added or moved."""
    where = list(places(record))
    while True:
        made = copy.deepcopy(record)
        at = draw.choice(where)
        inside = made
        for name in at[:-1]:
            inside = inside[name]
        match draw.randrange(5):
            case 0:
                del inside[at[-1]]
            case 1 if isinstance(inside, dict):
                inside["more"] = draw.choice(HOSTILE)
            case 1:
                inside.append(draw.choice([*inside, *HOSTILE]))
            case _:
                inside[at[-1]] = draw.choice(HOSTILE)
        yield at, made


def allowed(case):
    """The published schema, by a validator of others."""
    whole = json.loads((FORMATS / f"{case.name}.schema.json").read_text())
    if case.part is not None:
        whole = {"$ref": f"#/$defs/{case.part}", "$defs": whole["$defs"]}
    plain = jsonschema.Draft202012Validator  # in which 3.0 is an integer
    kinds = plain.TYPE_CHECKER.redefine(
        "integer", lambda _, x: isinstance(x, int) and not isinstance(x, bool))
    return jsonschema.validators.extend(plain, type_checker=kinds)(whole)


def finite(record):
    """Whether JSON has a word for all of its numbers, in double precision."""
    if isinstance(record, dict | list):
        return all(map(finite, record.values() if isinstance(record, dict) else record))
    return isinstance(record, bool | str | None) or abs(record) <= 1e308 * 1.79


def is_allowed(record, case):
    try:
        saved_json.check(record, case.name, case.part)
    except ValueError:
        return False
    return True


def checked(case, count):
    """Reads so many mutants: each is read as its schema allows, or refused by the one error."""
    valid, draw = allowed(case), random.Random(7)
    case.write(case.record)
    case.read()
    refused = 0
    for (at, record), _ in zip(mutants(case.record, draw), range(count), strict=False):
        case.write(record)
        if isinstance(case, Booked):
            record = remade(record)
        try:
            case.read()
        except DamagedFileError as error:
            refused += 1
            said = str(error)
            assert said.startswith(str(case.path))
            assert said.endswith(".")
            assert len(said) < 500
            assert "DROP" not in said
        else:
            assert valid.is_valid(saved_json.plain(record)), (at, record)
            assert finite(record)
        assert is_allowed(record, case) == (valid.is_valid(record) and finite(record)), (at, record)
    return refused


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "k"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_file_with_one_hostile_value_is_read_as_published_or_refused(kind, k, tmp_path):
    assert checked(kind(tmp_path, k), 60) >= 6


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "k"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_many_hostile_values(kind, k, tmp_path):
    assert checked(kind(tmp_path, k), 1000) > 100


# --- texts ---


def twice(text):
    """The first name of an object twice, with the first value and another one."""
    at = text.index('"')
    return text[:at] + text[at: text.index(":", at)] + ": -1, " + text[at:]


SPOILT = {"empty": lambda text: b"", "cut": lambda text: text[:-9].encode(),
          "deep": lambda text: b"[" * 50_000, "deep within": lambda text: text.replace(
              ": ", ": " + "[" * 50_000, 1).encode(),
          "long": lambda text: text.replace(": ", f": {'9' * 5000}, \"more\": ", 1).encode(),
          "bytes": lambda text: b"\xff\xfe" + text.encode(), "list": lambda text: b"[]",
          "records": lambda text: b'[{"name": "Anna Arendt", "ill": "yes"}]',
          "columns": lambda text: b'{"name": {"0": "Anna Arendt"}, "ill": {"0": "yes"}}',
          "lines": lambda text: b'{"name": "Anna Arendt"}\n{"name": "Anna Arendt"}\n',
          "zip": lambda text: b"PK\x03\x04Anna Arendt", "CSV": lambda text: b"Anna Arendt,yes\n"}


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("case", [Model, Booked, Run])
def test_a_text_that_is_no_such_file_is_refused_without_its_content(case, spoil, tmp_path):
    one = case(tmp_path, 0)
    one.path.write_bytes(SPOILT[spoil](one.path.read_text() if one.path.exists() else
                                       json.dumps(one.record)))
    with pytest.raises(DamagedFileError) as refused:
        one.read()
    assert str(refused.value).startswith(f"{one.path} is no ")
    assert not {"Anna", "Arendt"} & set(str(refused.value).replace('"', " ").split())


@pytest.mark.parametrize("case", [Model, Booked, Run])
def test_a_name_that_is_there_twice_is_refused(case, tmp_path):
    one = case(tmp_path, 0)
    one.write(one.record)
    one.path.write_text(twice(one.path.read_text()))
    with pytest.raises(DamagedFileError, match="is there twice"):
        one.read()


# --- named findings ---


@pytest.mark.parametrize(("at", "value", "field"), [
    (("features", 0, "weights"), [math.nan], r"features\[0\].weights\[0\] must be a number"),
    (("features", 0, "weights"), [10**400], r"features\[0\].weights\[0\] must be a number"),
    (("features", 0, "weights"), ["0"], r"features\[0\].weights\[0\] must be of type number"),
    (("features", 0, "weights"), [1.0, 2.0], "too many values"),
    (("features", 0, "name"), "other", "features and label must be those of schema"),
    (("features", 0, "range"), [0, 1], "features and label must be those of schema"),
    (("features", 0, "scale"), 0, r"features\[0\].scale must be"),
    (("label", "positive"), "other", "features and label must be those of schema"),
    (("intercepts",), [[1, 2]], r"intercepts\[0\] must be of type number"),
    (("released", "floor"), -1e9, "released.floor must be"),
    (("released", "floor"), 0, "released.floor must be"),
    (("released", "mean"), [math.inf] * 5, r"released.mean\[0\] must be a number"),
    (("released", "mean"), [0.5], "weights, mean, second and prior must be as many"),
    (("released", "prior"), [0.5, 0.5], "weights, mean, second and prior must be as many"),
    (("schema", "columns", "age", "range"), [0, 9e307], r"schema.columns.age.range\[1\] must be"),
    (("schema", "owner", "most"), 10**22, "schema.owner.most must be a number from 1 to 1e"),
    (("schema", "columns"), {}, "a column at least"), (("format",), 3, "format must be 1")])
def test_a_model_names_the_field_that_is_wrong(at, value, field, tmp_path):
    one = Model(tmp_path, 0)
    inside = one.record
    for name in at[:-1]:
        inside = inside[name]
    inside[at[-1]] = value
    one.write(one.record)
    with pytest.raises(DamagedFileError, match=f"model.json is no saved scorer: .*{field}"):
        one.read()


@pytest.mark.parametrize("kind", range(2))
def test_charges_that_give_budget_back_are_refused_whatever_the_checksum(kind, tmp_path):
    one = Booked(tmp_path, kind)
    amount = next(iter(one.record["filter"]["limits"]))
    for value, words in ((-50.0, f"entries\\[0\\].charge.{amount} must be a number from 0"),
                         (math.inf, f"charge.{amount} must be"), (10**400, f"charge.{amount} must"),
                         (1e9, f"sum of charges is above filter.limits.{amount}")):
        record = copy.deepcopy(one.record)
        record["entries"][0]["charge"][amount] = value
        one.write(record)
        with pytest.raises(DamagedFileError, match=words):
            one.read()
    record = copy.deepcopy(one.record)
    record["entries"][1]["name"] = record["entries"][0]["name"]
    one.write(record)
    with pytest.raises(DamagedFileError, match="different names"):
        one.read()


@pytest.mark.parametrize(("before", "after", "words"), [
    ("most = 3", f"most = {10**22}", "owner.most must be a number from 1 to 1e"),
    ("most = 3", "most = 3.0", "owner.most must be of type integer"),
    ("[18, 90]", f"[18, {'9' * 400}]", "range.1. must be a number"),
    ("[18, 90]", f"[18, {'9' * 5000}]", "no schema"),
    ("[18, 90]", "[nan, inf]", "range.0. must be"),
    ("[18, 90]", "[false, true]", "range.0. must be of type number"),
    ("[18, 90]", "[90, 18]", "low < high"), ("[18, 90]", "18", "range must be of type array"),
    ("log = true", "log = 1", "log must be of type boolean"),
    ("[18, 90]", "[" * 50_000, "no schema"),
    ("by_label = true", 'by_label = "yes"', "groups.by_label must be of type boolean"),
    ('range = "charged"', 'range = "no"', "columns.debt.range must be"),
    ("positive", "Positive", "label.positive is missing"),
    ("[columns]", "[column]", "columns is missing"),
    ("label = {", "positive = 1\nlabel = {", "positive belongs inside label[.]"),
    ("label = {", "most = 1\nlabel = {", "most belongs inside owner[.]"),
    ("label = {", "values = 1\nlabel = {", "values belongs inside label or groups[.]"),
    # what the format has no word for may be of another file
    ("label = {", "Arendt = 1\nlabel = {", "it has an entry that is none of label, columns"),
    ("label = {", "type = 1\nlabel = {", "it has an entry that is none of label, columns"),
    ('["state", 3', '["state", [3]', r"categories\[1\] must be of type string or number or bool"),
    ("[columns]", "[columns]\nage = 3", "no schema")])
def test_a_schema_in_a_file_names_the_entry_that_is_wrong(before, after, words, tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(TOML)
    assert list(Schema.from_toml(path).columns) == ["age", "gain", "debt", "work"]
    path.write_text(TOML.replace(before, after))
    with pytest.raises(DamagedFileError, match=f"schema.toml is no schema in TOML: .*{words}"
                       if words != "no schema" else words):
        Schema.from_toml(path)


def test_published_schemas_use_the_words_that_are_read():
    """A word that is not read would state a range that nothing holds a file to."""
    read = {"type", "enum", "minimum", "maximum", "exclusiveMinimum", "minItems", "maxItems",
            "items", "properties", "required", "additionalProperties", "oneOf", "$ref"}
    told = {"$schema", "title", "description", "$defs"}

    def rules(rule):
        yield rule
        for name in ("items", "additionalProperties"):
            if isinstance(rule.get(name), dict):
                yield from rules(rule[name])
        for inside in (*rule.get("oneOf", ()), *rule.get("properties", {}).values(),
                       *rule.get("$defs", {}).values()):
            yield from rules(inside)

    for path in FORMATS.iterdir():
        whole = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(whole)
        for rule in rules(whole):
            assert set(rule) <= read | told
            assert isinstance(rule.get("type", []), list)
            if "exclusiveMinimum" in rule:
                assert rule["exclusiveMinimum"] == rule["minimum"]
            assert not ("oneOf" in rule and set(rule) - told - {"oneOf"})
            if "$ref" in rule:
                assert set(rule) == {"$ref"}
                assert rule["$ref"].removeprefix("#/$defs/") in whole["$defs"]
