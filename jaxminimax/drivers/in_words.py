"""A static value in words that are the same in every process: rules, functions, objects.

Functions are told by their code, their defaults and what they close over; a user's also by the
globals that they read, for a rule that is changed there is another rule; objects by what they hold.
"""

import dataclasses
import functools
import hashlib
import re
import types
from typing import Any

import jax
import numpy as np

_LIBRARIES = ("jaxminimax", "jax", "optax", "chex", "numpy", "builtins")


def in_words(x: Any) -> str:
    """A static value in words."""
    return _told(x, set())


def plain(text: str) -> str:
    """Without addresses, colours and line breaks, which are other ones in every process."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text).split())


def _told(x: Any, seen: set[int]) -> str:
    """A static value in words: functions by their code, and by what they close over."""
    def told(*parts: Any) -> str:
        return "(" + ", ".join(_told(part, seen) for part in parts) + ")"

    if isinstance(x, np.ndarray | np.generic | jax.Array):
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return f"key of {jax.random.key_impl(x)}" + told(jax.random.key_data(x))
        array = np.asarray(x)
        return f"{array.dtype.name}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    bare = type(x).__repr__ is object.__repr__ and hasattr(x, "__dict__")
    if bare or (callable(x) and not isinstance(x, type)):
        if id(x) in seen:  # a function that closes over itself
            return "again"
        seen = seen | {id(x)}
    name = f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', type(x).__qualname__)}"
    match x:
        case functools.partial():
            return "partial" + told(x.func, x.args, x.keywords)
        case types.FunctionType():
            cells = tuple(cell.cell_contents for cell in x.__closure__ or ())
            return name + told(x.__code__, x.__defaults__, x.__kwdefaults__, cells,
                               *_globals_of(x))
        case types.MethodType():
            return name + told(x.__func__, x.__self__)
        case types.CodeType():
            return f"{x.co_code.hex()} {x.co_names}" + told(*x.co_consts)
        case types.ModuleType():
            return x.__name__
        case dict():
            return "dict" + told(*x.items())
        case frozenset() | set():
            return "set" + str(sorted(_told(one, seen) for one in x))
        case tuple() | list():
            return type(x).__qualname__ + told(*x)
    if callable(getattr(x, "__wrapped__", None)):  # jitted, or decorated otherwise
        return name + told(x.__wrapped__)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return name + told(*((f.name, getattr(x, f.name)) for f in dataclasses.fields(x)),
                           *_own_methods(type(x)))
    if bare or (callable(x) and hasattr(x, "__dict__") and not isinstance(x, type)):
        return name + told(plain(repr(x)), vars(x), type(x).__call__ if callable(x) else None,
                           *_own_methods(type(x)))
    return plain(repr(x))


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """What a user's function reads of its module, by name; other libraries have versions.

    Of modules that it reads, what is told are their names: keep rules, and their numbers, in the
    module that uses them.
    """
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return []
    return [(name, function.__globals__[name]) for name in sorted(_names(function.__code__))
            if not isinstance(function.__globals__.get(name), types.ModuleType | type | None)]


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that code, or code within it, reads."""
    return set(code.co_names).union(*(
        _names(x) for x in code.co_consts if isinstance(x, types.CodeType)))


def _own_methods(kind: type) -> list[tuple[str, Any]]:
    """Methods, properties and plain numbers of a class that is not of a library, by name."""
    own = [base for base in kind.__mro__ if base is not object and
           base.__module__.split(".")[0] not in (*_LIBRARIES, "abc", "flax", "equinox", "haiku")]
    found = [(name, getattr(value, "__func__", getattr(value, "fget", value)))
             for base in own for name, value in sorted(vars(base).items())
             if not name.startswith("__")]
    return [(name, value) for name, value in found
            if isinstance(value, types.FunctionType | int | float | str | tuple)]
