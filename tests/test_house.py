"""The house stands on its floors, and data leave by one door: read off the source, not run."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "jaxminimax"
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}

# A module imports from the floors below its own only; a part is a module or a folder of modules.
FLOORS = {
    "_types": 0, "_check": 0, "_tree": 0, "_held": 0, "_words": 0, "_bar": 0,
    "_arithmetic": 0, "_programs": 0,
    "mechanism": 1, "solvers": 1, "group_solvers": 1, "integer_sums": 1, "ghost": 1,
    "_valid": 2, "gradients": 2, "sampling": 2, "noise": 2, "averaging": 2, "schedules": 2,
    "host_data": 2, "sharding": 2, "shard_sums": 2, "integer_noise": 2, "_own_record": 2,
    "blur": 3, "prefetch": 3,
    "release": 3, "release_groups": 3, "release_solution": 3, "release_stream": 3,
    "algorithms": 4, "problems": 4, "metrics": 4,
    "_fingerprint": 4, "drivers": 5, "fit": 5, "plans": 5,
    "audit": 6,
    "__init__": 7, "__main__": 7,
}
# on one floor, and in this order
BESIDE = {("_tree", "_types"), ("_held", "_types"), ("_held", "_tree"), ("shard_sums", "sharding"),
          ("shard_sums", "gradients"), ("shard_sums", "sampling"),
          ("integer_sums", "mechanism"), ("ghost", "integer_sums"), ("ghost", "mechanism"),
          ("ghost", "solvers"), ("release", "blur"), ("release_groups", "blur"),
          ("release_solution", "blur"), ("release_stream", "blur"),
          ("_own_record", "host_data"), ("_own_record", "sharding"), ("prefetch", "release"),
          ("release_groups", "release"),
          ("release_groups", "release_stream"), ("release_solution", "release_stream"),
          ("__main__", "__init__")}
# all that it may see
ACCOUNTING = {"mechanism", "integer_noise", "_valid", "sampling", "_check", "_types", "accounting"}
MAY_ACCOUNT = {"fit", "plans", "audit", "__init__", "__main__"}  # all that may see it

# the only functions that data may be handed to
DOOR = {"release", "release_resolvent", "release_group_gradient", "release_group_losses",
        "release_group_solution", "release_leaf", "release_loss", "next_pair"}
FEED = {"feed"}  # of one algorithm, which another may use
ONWARDS = {"update", "run", "_rounds", "arrays", "_advance", "on_mesh", "_in_turn", "Supply"}


def part_of(path):
    """The part of the house that a file belongs to."""
    return pathlib.PurePosixPath(path).parts[0].removesuffix(".py")


def imported(path, source):
    """The parts of the package that a file imports."""
    folder = ["jaxminimax", *pathlib.PurePosixPath(path).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "jaxminimax":
                known = len(parts) > 1 and parts[1] in {*FLOORS, "accounting"}
                yield parts[1] if known else "__init__"


def breaches(path, source):
    """Imports that do not point down."""
    me = part_of(path)
    for other in imported(path, source):
        if me == "accounting":
            allowed = other in ACCOUNTING
        elif other == "accounting":
            allowed = me in MAY_ACCOUNT
        else:
            same = other == me and "/" in path  # files of one folder
            allowed = same or (me, other) in BESIDE or FLOORS[other] < FLOORS[me]
        if not allowed:
            yield me, other


def leaks(source, doors):
    """Lines where `data` is anything but an argument of a call to one of `doors`."""
    tree = ast.parse(source)
    handed = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", getattr(call.func, "attr", None))
            if name in doors:
                handed |= {id(x) for x in (*call.args, *(k.value for k in call.keywords))}
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name)
            and node.id == "data" and id(node) not in handed]


def functions(source):
    return [node for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]


def parameters(function):
    args = function.args
    return [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg,
                            args.kwarg) if a is not None]


def in_folder(folder):
    return sorted(p for p in SOURCES if p.startswith(folder) and not p.endswith("__init__.py"))


every_file = pytest.mark.parametrize("path", sorted(SOURCES))


# --- floors ---


@every_file
def test_every_file_has_a_floor(path):
    assert part_of(path) in {*FLOORS, "accounting"}, "say in FLOORS where the new part stands"


@every_file
def test_imports_point_down(path):
    assert list(breaches(path, SOURCES[path])) == []


@pytest.mark.parametrize(("path", "line"), [
    ("release.py", "from jaxminimax.algorithms import sgda"),
    ("algorithms/sgda.py", "from jaxminimax import accounting"),
    ("algorithms/sgda.py", "from jaxminimax.accounting._epsilon import epsilon"),
    ("algorithms/sgda.py", "from .. import drivers"),
    ("accounting/_charge.py", "import jaxminimax.release"),
    ("accounting/_charge.py", "from ..gradients import clipped_sum"),
    ("mechanism.py", "from . import gradients"),
    ("mechanism.py", "import jaxminimax"),
    ("gradients.py", "def f():\n    from jaxminimax import noise"),
    ("_types.py", "from jaxminimax import _tree"),
])
def test_an_import_that_points_up_is_caught(path, line):
    assert len(list(breaches(path, line))) == 1


# --- one door ---


@pytest.mark.parametrize("path", in_folder("algorithms/"))
def test_algorithms_hand_data_to_the_door_and_to_nothing_else(path):
    source = SOURCES[path]
    assert leaks(source, DOOR | FEED) == []
    assert "data" in {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}


@pytest.mark.parametrize("path", in_folder("algorithms/"))
def test_data_have_their_name_wherever_an_algorithm_gets_them(path):
    (update,) = (f for f in functions(SOURCES[path]) if getattr(f, "name", "") == "update")
    assert parameters(update) == ["key", "state", "data", "hyper", "problem"]
    assert not {"init", "mechanism"} & {getattr(f, "name", "") for f in functions(SOURCES[path])
                                        if "data" in parameters(f)}


@pytest.mark.parametrize("path", ["drivers.py", "fit.py"])
def test_drivers_hand_data_on_and_do_nothing_else_with_them(path):
    assert leaks(SOURCES[path], ONWARDS) == []


@pytest.mark.parametrize("path", [p for p in sorted(SOURCES) if FLOORS.get(part_of(p)) in (4, 5)])
def test_above_the_door_no_one_holds_its_tools(path):
    """Without the sampler, the clipped sums and the noise there is no second door."""
    assert not {"gradients", "sampling", "noise", "shard_sums"} & set(imported(path, SOURCES[path]))


@pytest.mark.parametrize("line", [
    "jnp.mean(data)",
    "release(key, jnp.mean(data))",
    "release(key, data[0])",
    "release(key, -data)",
    "release(key, *data)",
    "release(key, data.w)",
    "release(key, (data, data))",
    "x = data",
    "return data",
    "data = data",
    "z = state.z + data",
    "jax.vmap(problem.operator, (None, 0))(state.z, data)",
    "release(key, lambda: data)",
    "log(f'{data}')",
])
def test_data_that_go_anywhere_else_are_caught(line):
    source = ("def update(key, state, data, hyper, problem):\n"
              "    g = release(key, data, other=data)\n    ")
    assert leaks(source + "return g", DOOR) == []
    assert set(leaks(source + line, DOOR)) == {3}


# --- what is nowhere ---


@every_file
def test_no_function_takes_a_standard_deviation(path):
    """The noise is one product, in the door; only the generator below it is told the result."""
    for function in functions(SOURCES[path]):
        taken = {"sigma", "std", "stddev", "standard_deviation"} & set(parameters(function))
        assert not taken or (path, function.name) == ("noise.py", "gaussian")


@every_file
def test_the_package_leaves_the_configuration_of_jax_alone(path):
    """But for one inner solve in float64, within a scope."""
    switches = ("config",) if path == "solvers.py" else ("config", "enable_x64")
    for node in ast.walk(ast.parse(SOURCES[path])):
        assert not (isinstance(node, ast.Attribute) and node.attr in switches)
        assert not (isinstance(node, ast.alias) and "config" in node.name.split("."))


@every_file
def test_nothing_is_left_for_later(path):
    assert not any(word in SOURCES[path] for word in ("NotImplementedError", "TODO", "FIXME"))
