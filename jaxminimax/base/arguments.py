"""Checks of arguments, whose messages name the argument, its kind and the expected kind.

The checks read kinds, dtypes and shapes, and never the numbers of the data. They change no value.
"""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.checks import describe, takes
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle


def algorithm(x: Any, *functions: str) -> None:
    """Refuses an object that is no algorithm.

    Args:
      x: a module such as `sgda`.
      *functions: names of functions that it must have, besides `mechanism`.

    Raises:
      TypeError: naming the argument that was passed.
    """
    if not all(callable(getattr(x, name, None)) for name in ("mechanism", *functions)):
        raise TypeError("algorithm must be a module such as jaxminimax.sgda, with "
                        f"{', '.join(('mechanism', *functions))}, got {describe(x)}.")


def settings(hyper: Any, algorithm_: Any) -> None:
    """Refuses settings that are not an algorithm's own.

    Args:
      hyper: the settings.
      algorithm_: the algorithm; one without a class `Hyper` takes any.

    Raises:
      TypeError: naming what was given; for a function where a number or a schedule belongs.
    """
    hyper_class = getattr(algorithm_, "Hyper", None)
    if isinstance(hyper_class, type) and not isinstance(hyper, hyper_class):
        name = str(getattr(algorithm_, "__name__", type(algorithm_).__name__)).split(".")[-1]
        kind = type(hyper)
        passed_name = (f"{kind.__module__.split('.')[-1]}.Hyper" if kind.__name__ == "Hyper"
                  else describe(hyper))
        raise TypeError(f"hyper must be {name}.Hyper(query=..., ...), got {passed_name}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(hyper):
        if callable(leaf) and not isinstance(leaf, type) and not hasattr(leaf, "dtype"):
            leaf_name = f"hyper{jax.tree_util.keystr(path)}"
            raise TypeError(f"{leaf_name} must be a number or a schedule, got {describe(leaf)}: "
                            "give schedules.FromOptax(schedule=...) for one of optax.")


def problem(x: Any, algorithm_: Any = None) -> None:
    """Refuses an object that is no problem, or a problem that the algorithm does not solve.

    Args:
      x: a `Problem` or a `GroupProblem`.
      algorithm_: the algorithm; None for any.

    Raises:
      TypeError: naming the argument that was passed and the expected kind.
    """
    if not callable(getattr(x, "operator", None)) or hasattr(x, "strategy"):
        raise TypeError(f"problem must be a Problem, got {describe(x)}: of a loss "
                        "(w, v, example) -> [] make Problem(operator=saddle_operator(loss)).")
    for expected, passed in ((Problem, GroupProblem), (GroupProblem, Problem)):
        if isinstance(x, passed) and _annotation(getattr(algorithm_, "update", None)) is expected:
            raise TypeError(f"problem must be a {expected.__name__} for this algorithm, got a "
                            f"{passed.__name__}.")
    drawn = ("key",) if getattr(x, "random", False) else ()
    takes("problem.operator", x.operator, "z", "example", *drawn)


@functools.lru_cache(maxsize=64)
def _annotation(update: Any) -> Any:
    """The kind of problem that an algorithm's `update` says it solves."""
    try:
        parameter = inspect.signature(update).parameters.get("problem")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else parameter.annotation


def players(name: str, x: Any, contents: str = "one number for each player") -> None:
    """Refuses an object that is no pair of both players' settings.

    Raises:
      TypeError: naming what was given.
    """
    if not isinstance(x, Saddle):
        raise TypeError(f"{name} must be a Saddle, {contents}, got {describe(x)}: "
                        "Saddle(w=..., v=...).")


def point(z: Any, name: str = "z") -> Saddle:
    """Returns the initial point as arrays.

    Args:
      z: a `Saddle` of pytrees of arrays, or of Python's floats.
      name: what to call it in messages.

    Raises:
      TypeError: for an object that is no `Saddle`, or for leaves that are integers, tensors of
        other libraries or no numbers.
    """
    players(name, z, "the parameters of both players")
    floats(z, name)
    return Saddle(*jax.tree.map(jnp.asarray, z))


def floats(parameters: PyTree, name: str) -> None:
    """Refuses parameters that cannot move by steps.

    Raises:
      TypeError: for leaves that are integers, tensors of other libraries or no numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        leaf_name = name + jax.tree_util.keystr(path)
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | float | complex) or (
                isinstance(leaf, np.ndarray) and not _is_numbers(leaf.dtype)):
            _refuse_leaf(leaf_name, leaf, tree=parameters)
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(f"{leaf_name} has dtype {dtype}, but parameters move by steps: " + (
                _model_fix(parameters) or "give numbers of a float dtype, jnp.asarray(x, "
                "jnp.float32), or close over what is not trained, such as a counter."))


def records(data: PyTree, name: str = "data") -> None:
    """Refuses data that are no arrays of numbers; it reads shapes and dtypes only.

    Args:
      data: leaves of JAX's or NumPy's arrays.
      name: what to call them in messages.

    Raises:
      TypeError: for lists, frames, tensors of other libraries, arrays of text or objects.
    """
    if hasattr(data, "__next__"):  # before JAX looks for leaves in it
        _refuse_leaf(name, data)
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if isinstance(leaf, jax.Array):
            continue
        leaf_name = name + jax.tree_util.keystr(path)
        if not isinstance(leaf, np.ndarray):
            _refuse_leaf(leaf_name, leaf, _list_above(data, path, name))
        if not _is_numbers(leaf.dtype):
            raise TypeError(f"{leaf_name} has dtype {leaf.dtype}, which is no number: encode it by "
                            "a rule that is public (`Schema` does that for tables).")


def _is_numbers(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool)


def _model_fix(*trees: PyTree) -> str:
    """The way to take the parameters out of a model of a framework; "" for other trees."""
    parts = [x for tree in trees for x in (tree if isinstance(tree, Saddle) else (tree,))]
    names = {kind.__module__.split(".")[0] for x in parts for kind in type(x).__mro__}
    models = {  # how a model of a framework gives its parameters
        "flax": "graph, w, rest = nnx.split(model, nnx.Param, ...) in nnx, and model.init(key, "
                "record)['params'] in linen",
        "equinox": "w, static = eqx.partition(model, eqx.is_inexact_array)"}
    return "".join(f"take the parameters alone, by {models[name]}, and close over the rest."
                   for name in sorted(names & set(models)))


def _refuse_leaf(leaf_name: str, leaf: Any, list_name: str = "", tree: PyTree = None) -> None:
    """Raises an error with a leaf's kind alone: messages hold no number of the data."""
    kind = type(leaf)
    module = kind.__module__.split(".")[0]
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    if list_name:
        raise TypeError(f"{list_name} must be an array of JAX or NumPy, got a list of {name}: "
                        "lists are trees of single numbers here, so give np.asarray(...) of the "
                        "whole, with records of several lengths padded to one, and a mask.")
    methods = {"pandas": "to_numpy()", "polars": "to_numpy()", "pyarrow": "to_numpy()",
               "torch": "detach().cpu().numpy()", "tensorflow": "numpy()"}
    fix = f"give x.{methods[module]}." if module in methods else (
        _model_fix(tree, leaf) or "give np.asarray(x).")
    if hasattr(leaf, "__next__") or "DataLoader" in name:
        fix = ("give arrays, or placement.HostData of a data set that returns records by number: "
               "the sample is drawn by the description, and not by a loader.")
    raise TypeError(f"{leaf_name} must be an array of JAX or NumPy, got {name}: {fix}")


def _list_above(tree: PyTree, path: tuple[Any, ...], name: str) -> str:
    """The place of the outermost list on the way to a leaf; "" if there is none."""
    for k, step in enumerate(path):
        if isinstance(tree, list):
            return name + jax.tree_util.keystr(path[:k])
        index: Any = getattr(step, "idx", getattr(step, "key", getattr(step, "name", None)))
        tree = getattr(tree, index) if isinstance(index, str) and hasattr(tree, index) else (
            tree[index] if isinstance(tree, tuple | dict) else None)
    return ""


def call(key_: Any, z: Any, hyper: Any, algorithm_: Any, problem_: Any, *,
         single: bool = True) -> None:
    """Refuses arguments of a driver that are of the wrong kind, before any of them is used.

    `records` checks data.

    Args:
      key_: root key, or several.
      z: initial point.
      hyper: settings.
      algorithm_: the algorithm.
      problem_: the problem.
      single: whether there must be one key.

    Raises:
      TypeError: naming the argument that was passed and the expected kind.
      ValueError: for several keys.
    """
    algorithm(algorithm_, "init", "update")
    settings(hyper, algorithm_)
    problem(problem_, algorithm_)
    key(key_, single=single)
    point(z)


def key(x: Any, name: str = "key", *, single: bool = True) -> None:
    """Refuses an object that is no typed key.

    Args:
      x: the argument that was passed.
      name: what to call it in messages.
      single: whether it must be one key.

    Raises:
      TypeError: for numbers and for keys of the old kind, plain uint32 words.
      ValueError: for several keys.
    """
    if not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        old = isinstance(x, np.ndarray | jax.Array) and x.dtype == np.uint32
        fix = "jax.random.wrap_key_data(key) makes one of the old kind's words" if old else (
            "secret_key() draws one")
        raise TypeError(f"{name} must be a typed key of JAX, got {describe(x)}: {fix}.")
    if single and x.shape != ():
        raise ValueError(f"{name} must be one key, got an array of shape {x.shape}: vmap over "
                         "keys, or use sweep.")


def same_shapes(actual: PyTree, expected: PyTree, name: str, expected_name: str) -> None:
    """Refuses a value whose tree or shapes are not those of another.

    Args:
      actual: the actual shapes and dtypes.
      expected: arrays of the expected shapes.
      name: the name of the actual value.
      expected_name: the name of the expected one.

    Raises:
      TypeError: naming both.
    """
    layouts = [(str(jax.tree.structure(tree)), [np.shape(x) for x in jax.tree.leaves(tree)])
               for tree in (actual, expected)]
    if layouts[0] != layouts[1]:
        raise TypeError(f"{name} must look like {expected_name}, shapes "
                        f"{jax.tree.map(np.shape, expected)}, got "
                        f"{jax.tree.map(np.shape, actual)}.")
