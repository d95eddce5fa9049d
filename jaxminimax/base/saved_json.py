"""JSON files that the library wrote and reads back, held against their published schemas.

Such a file may be damaged, changed by hand or written by somebody who means harm. What is read here
has the types and ranges that `formats/NAME.schema.json` states, each name once, and finite numbers
alone. The schemas are JSON Schema 2020-12 and use the words that `_faults` reads and no others;
an `exclusiveMinimum` comes with an equal `minimum`, and `type` is a list.
Another file may be named by mistake, and its content be records: a message names the field that is
wrong, and prints no value and no name that the schema does not know.
"""

import contextlib
import functools
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

FORMATS = pathlib.Path(__file__).with_name("formats")
_KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool,
                          "null": type(None), "integer": int, "number": int | float}
_TWICE = object()  # in place of the value of a name that an object has twice


class DamagedFileError(ValueError):
    """A file that the library reads back is damaged, or is another one: it names file and field.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("model.json").write_text('{"format": 1, "weights": [NaN]}')
        >>> try:
        ...     jmm.tables.Scorer.load("model.json")
        ... except jmm.tables.DamagedFileError as error:
        ...     print(error)
        model.json is no saved scorer: label is missing. Restore it, or train again.
    """


@contextlib.contextmanager
def explained(path: Any, expected: str, fix: str) -> Iterator[None]:
    """Names a file in errors of its content.

    Args:
      path: of the file.
      expected: what it should be.
      fix: a sentence.

    Raises:
      DamagedFileError: in place of every other error of a value.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        text = str(error).rstrip(".")
        raise DamagedFileError(f"{path} is no {expected}: {text}. {fix}") from None


def plain(x: Any) -> Any:
    """Returns a record of Python's values, or of NumPy's, as a file in JSON would hold it."""
    return parsed(json.dumps(x, default=lambda x: x.tolist() if hasattr(x, "tolist") else str(x)))


def parsed(text: str | bytes) -> Any:
    """Returns what a text in JSON says, with a mark where a name is there twice.

    Raises:
      ValueError: for what is no JSON, and for integers that Python does not read.
      RecursionError: for what is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_mark_duplicates)


def _mark_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, value in pairs:
        record[name] = _TWICE if name in record else value
    return record


def check(record: Any, name: str, definition: str | None = None) -> None:
    """Refuses a record that a published schema does not allow.

    Args:
      record: as `parsed` returns it.
      name: of the schema.
      definition: one of its definitions; None for all of it.

    Raises:
      ValueError: naming the first field that is wrong.
    """
    schema = _format(name)
    rule = schema if definition is None else schema["$defs"][definition]
    for fault in _faults(record, rule, schema, ""):
        raise ValueError(fault)


@functools.cache
def _format(name: str) -> dict[str, Any]:
    return dict(json.loads((FORMATS / f"{name}.schema.json").read_text(encoding="utf-8")))


def _names(rule: Any) -> set[str]:
    """The names of the fields that a rule of a schema lists, at any depth."""
    if not isinstance(rule, dict | list):
        return set()
    inner = rule.values() if isinstance(rule, dict) else rule
    fields = rule.get("properties", {}) if isinstance(rule, dict) else {}
    return set(fields).union(*map(_names, inner))


def _faults(x: Any, rule: Any, schema: dict[str, Any], field: str) -> Iterator[str]:
    """Yields what is wrong with a value by a rule of a schema, with the field's name."""
    rule = schema["$defs"][rule["$ref"].removeprefix("#/$defs/")] if "$ref" in rule else rule
    kinds, values, shown_field = rule.get("type", _KINDS), rule.get("enum", [x]), field or "it"
    if "oneOf" in rule:
        branches = [list(_faults(x, branch, schema, field)) for branch in rule["oneOf"]]
        if all(branches):  # the one that fits best: few faults, and these far inside
            yield from min(branches, key=lambda faults: len(faults) - max(
                sum(map(fault.split(" ")[0].count, ".[")) for fault in faults))
    elif x is _TWICE:
        yield f"{shown_field} is there twice"
    elif not any(isinstance(x, _KINDS[kind]) and (kind == "boolean" or not isinstance(x, bool))
                 for kind in kinds):
        yield f"{shown_field} must be of type {' or '.join(kinds)}"
    elif x not in values:
        yield f"{shown_field} must be {' or '.join(map(repr, values))}"
    elif isinstance(x, int | float):
        largest = sys.float_info.max
        low, high = rule.get("minimum", -largest), rule.get("maximum", largest)
        if not low <= x <= high or x == rule.get("exclusiveMinimum", math.nan):
            yield f"{shown_field} must be a number from {low:g} to {high:g}"
    elif isinstance(x, list):
        if not rule.get("minItems", 0) <= len(x) <= rule.get("maxItems", math.inf):
            yield f"{shown_field} has too few or too many entries, {len(x)}"
        for k, value in enumerate(x):
            yield from _faults(value, rule.get("items", {}), schema, f"{field}[{k}]")
    elif isinstance(x, dict):
        listed, additional = rule.get("properties", {}), rule.get("additionalProperties", {})
        inside = f"{field}." if field else ""
        yield from (f"{inside}{name} is missing" for name in rule.get("required", ())
                    if name not in x)
        if additional is False and not x.keys() <= listed.keys():
            homes = {name: [entry for entry in listed if name in _names(listed[entry])]
                     for name in x if name not in listed}
            yield from (f"{inside}{name} belongs inside {' or '.join(entries)}"
                        for name, entries in homes.items() if entries)  # names of the format
            if not all(homes.values()):
                yield f"{shown_field} has an entry that is none of {', '.join(listed)}"
        for name in filter(x.__contains__, listed if additional is False else x):
            shown = name in listed or isinstance(x[name], dict | int | float)  # else it is a table
            yield from _faults(x[name], listed.get(name, additional), schema,
                               f"{inside}{name if shown else 'NAME'}")
