"""Reads a statement's record back: what `to_json` made of each field, by the field's type."""

import dataclasses
import types
import typing
from typing import Any


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
    """A field as it was before `to_json`: lists are tuples, and a number that is null infinity.

    Raises:
      ValueError: if the value is not of the field's type.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (one for one in inside if one is not type(None))
        # null is infinity only for an odometer, which has its milestone
        none = value is None and (kind is not float or record.get("milestone") is None)
        return None if none else _read(name, value, kind, record)
    if kind is Any:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(name, one, inside[0], record) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(name, one, inside[1], record) for key, one in value.items()}
    if kind is float and value is None:
        return float("inf")
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{name} of a statement's record must be {kind}, got {value!r}.")
