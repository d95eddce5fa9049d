"""The JSON record of a statement, and its fields read back from a record by their types.

JSON has no infinity. An epsilon that is infinite, or that is above what is proven, is the string
"no guarantee" in a record; null says that a number does not apply.
"""

import dataclasses
import json
import types
import typing
from typing import Any

NO_GUARANTEE = "no guarantee"


def record_of(said: Any) -> dict[str, Any]:
    """The fields of a statement as plain Python values."""
    return dict(json.loads(json.dumps(dataclasses.asdict(said)),
                           parse_constant=lambda _: NO_GUARANTEE))


def fields_of(kind: Any, record: Any) -> dict[str, Any]:
    """The fields of a statement's class from a record.

    Raises:
      ValueError: for what is no such record.
    """
    if not isinstance(record, dict):
        raise ValueError("A statement's record is a dictionary, as Statement.to_json makes it, got "
                         f"{type(record).__name__}.")
    kinds, needed = typing.get_type_hints(kind), {
        f.name for f in dataclasses.fields(kind)
        if f.default is f.default_factory is dataclasses.MISSING}
    if wrong := sorted(needed - set(record) | set(record) - set(kinds)):
        raise ValueError(f"The record is of no statement of this version: {wrong} missing or "
                         "unknown.")
    return {name: _read(name, value, kinds[name], record) for name, value in record.items()}


def _read(name: str, value: Any, kind: Any, record: dict[str, Any]) -> Any:
    """A field as it was before `to_json`: lists are tuples, and "no guarantee" is infinity.

    Records of version 0.1.0 and before say null for infinity: where a number must be, that is what
    null still means.

    Raises:
      ValueError: if the value is not of the field's type.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (one for one in inside if one is not type(None))
        # in an old record, the odometer of a milestone
        infinite = name == "epsilon_if_stopped_by_looking" and record.get("milestone") is not None
        none = value is None and not infinite
        return None if none else _read(name, value, kind, record)
    if kind is Any:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(name, one, inside[0], record) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(name, one, inside[1], record) for key, one in value.items()}
    if kind is float and value in (None, NO_GUARANTEE):
        return float("inf")
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{name} of a statement's record must be {kind}, got {value!r}.")
