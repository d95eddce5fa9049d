"""Modules import from the layers below alone, and data leave by releases: read off the source."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "jaxminimax"
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}

# A module imports from the layers below its own only; a part is a module or a folder of modules.
# Two floors: the engine, and from `apps` on what is built on it.
LAYERS = {
    "base": 0,
    "solvers": 1, "noise": 1,
    "mechanism": 2,
    "gradients": 3, "accounting": 3,
    "placement": 4,
    "releases": 5,
    "algorithms": 6, "problems": 6, "metrics": 6,
    "drivers": 7,
    "audit": 8, "checkup": 8, "types": 9,
    "apps": 10, "apps.accountant": 10, "apps.planner": 10, "apps.tables": 10, "apps.estimators": 11,
    "apps.commands": 11,
    "tables": 12, "estimators": 12,  # the public names of two apps
    "face": 13, "__main__": 13,
    "__init__": 14,
}
ACCOUNTING = {"base", "mechanism", "noise", "accounting"}  # all that it may see
# all that may see it
MAY_ACCOUNT = {"drivers", "audit", "checkup", "apps.accountant", "apps.planner", "apps.tables",
               "apps.estimators", "apps.commands", "face"}
# what releases are made of
TOOLS = {"gradients", "noise", "mechanism.sampling", "mechanism.distinct", "placement.shard_sums"}

# what algorithms share: no algorithms of their own
SHARED = {f"algorithms/{name}.py" for name in (
    "planning", "recursion", "bounds")}
FEED = {"observe_record"}  # of one algorithm, which another may use
INNER = {"hyper.inner.update"}  # of the algorithm that another is made for
ONWARDS = {"update", "run", "_rounds", "_full_run", "_compiled", "arrays", "as_rows",
           "_advance", "on_mesh", "_in_turn", "Supply", "is_traced", "trace", "check_constants",
           "whole_run", "call_kept", "program", "_saved", "_placed"}
# look at kinds and shapes, or pass on
SHAPES = {"_rows", "_check_apart", "_check_flat", "_read_by_score", "records", "check_records",
          "rows_each", "shards_of", "eval_shape", "check_functions"}

AHEAD = {"Supply", "_readable"}  # of a driver, which send rows of the host to its rounds

# modules that a test file of another name tests
TESTED_IN = {
    "releases/test_data_flow": "releases/release_operation",
    "accounting/test_epsilon_delta": "accounting/curve accounting/tuning",
    "accounting/test_ledger": "accounting/filters accounting/renyi",
    "accounting/test_subsampling": "accounting/gaussian",
    "accounting/test_statement_text": "accounting/printing accounting/statement_of_run",
    "accounting/test_composition": "accounting/tilt",
    "accounting/test_many_records": "mechanism/costs",
    "accounting/test_selection": "algorithms/active_groups",
    "algorithms/test_descent": "algorithms/gda",
    "algorithms/test_group_oco": "algorithms/ftrl releases/stream",
    "algorithms/test_proximal": "mechanism/resolvent",
    "algorithms/test_recursive": "algorithms/recursion algorithms/recursive_sgda",
    "algorithms/test_phased_erm": "mechanism/solutions releases/solutions",
    "audit/test_audit": "audit/pairs audit/released audit/signals",
    "base/test_arguments": "base/checks",
    "drivers/test_certificates": "problems/_held_out",
    "drivers/test_private_gradient": "drivers/point_register releases/point_keys",
    "drivers/test_runs": "drivers/long_runs drivers/many_runs",
    "drivers/test_tuning": "mechanism/repetitions",
    "gradients/test_integer_sums": "mechanism/grid",
    "mechanism/test_description": "mechanism/repeat mechanism/sentences",
    "mechanism/test_sampling": "mechanism/distinct mechanism/fixed_size mechanism/poisson",
    "noise/test_floats": "base/random_bits",
    "noise/test_sampler": "noise/_tables",
    "placement/test_host_data": "placement/sent_rows",
    "placement/test_sharding": "placement/agreement placement/shard_sums",
    "problems/test_problems": "problems/_auc problems/_games metrics",
    "releases/test_groups": "mechanism/groups",
    "releases/test_held_out": "mechanism/held_out",
    "releases/test_opening": "releases/budget releases/watch",
    "releases/test_sums": "releases/reading",
    "apps/tables/test_training": "apps/tables/linear",
    "apps/tables/test_scorer": "apps/tables/columns apps/tables/files apps/tables/report "
                               "apps/tables/schema apps/tables/unfinished",
    "apps/test_command": "__main__ apps/commands apps/accountant apps/planner",
    "test_names": "face types tables estimators base/types",
}


def part_of(path):
    """The part of the package that a file belongs to."""
    first, *more = pathlib.PurePosixPath(path).with_suffix("").parts
    return f"apps.{more[0]}" if first == "apps" and more != ["__init__"] else first


def imported(path, source):
    """The parts of the package that a file imports."""
    for name in modules(path, source):
        first, *more = name.split(".")
        inner = f"apps.{more[0]}" if first == "apps" and more else first
        yield inner if inner in LAYERS else first


def modules(path, source):
    """What a file imports from the package, as dotted names below it."""
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
                known = len(parts) > 1 and parts[1] in LAYERS
                yield ".".join(parts[1:]) if known else "__init__"


def breaches(path, source):
    """Imports that do not point down."""
    me = part_of(path)
    for other in set(imported(path, source)):
        if me == "accounting":
            allowed = other in ACCOUNTING
        elif other == "accounting":
            allowed = me in MAY_ACCOUNT
        else:
            same = other == me and "/" in path  # files of one folder
            allowed = same or LAYERS[other] < LAYERS[me]
        if not allowed:
            yield me, other


def leaks(source, releases):
    """Lines where `data` is anything but an argument of a call to one of `releases`."""
    tree = ast.parse(source)
    handed = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", getattr(call.func, "attr", None))
            if name in releases:
                handed |= {id(x) for x in (*call.args, *(k.value for k in call.keywords))}
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name)
            and node.id == "data" and id(node) not in handed]


def misplaced(source):
    """Lines that hand `data` to an `update` otherwise than as the third argument of an algorithm's.

    What is no module of `algorithms/`, such as an optimiser, gets none.
    """
    tree = ast.parse(source)
    ours = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            and node.module == "jaxminimax.algorithms" for alias in node.names}
    calls = [x for x in ast.walk(tree) if isinstance(x, ast.Call) and "data" in {
        getattr(y, "id", "") for z in (*x.args, *(k.value for k in x.keywords))
        for y in ast.walk(z)} and ast.unparse(x.func).split(".")[-1] == "update"]
    return [x.lineno for x in calls
            if ast.unparse(x.func) not in {f"{name}.update" for name in ours} | INNER
            or [i for i, y in enumerate(x.args) if getattr(y, "id", "") == "data"] != [2]
            or any(getattr(k.value, "id", "") == "data" for k in x.keywords)]


def functions(source):
    return [node for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]


def parameters(function):
    args = function.args
    return [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg,
                            args.kwarg) if a is not None]


def names_in_doubt(source):
    """Lines of `getattr(x, name, default)` with x, or what x is an attribute of, imported from us.

    A name that is gone would be read as the default.
    """
    tree = ast.parse(source)
    ours = {alias.asname or alias.name.split(".")[0] for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
            if (getattr(node, "module", None) or alias.name).split(".")[0] in {
                "jaxminimax", "benchmarks"}}
    return [call.lineno for call in ast.walk(tree) if isinstance(call, ast.Call)
            and getattr(call.func, "id", "") == "getattr" and len(call.args) == 3
            and ast.unparse(call.args[0]).split(".")[0] in ours]


def in_folder(folder):
    return sorted(p for p in SOURCES if p.startswith(folder) and "/" not in p.removeprefix(folder)
                  and not p.endswith("__init__.py"))


def decorators(function):
    return {ast.unparse(x) for x in getattr(function, "decorator_list", ())}


# the only functions that data may be handed to: those that drivers and audits see, two that call
# them, and one that looks at shapes
RELEASES = {f.name for path in in_folder("releases/") for f in ast.parse(SOURCES[path]).body
            if decorators(f) & {"watched", "watched_pair"}} | {
                "noisy_operator", "noisy_operator_and_clip", "next_pair"}


# --- layers ---


def test_every_file_has_a_layer():
    lost = [path for path in SOURCES if part_of(path) not in LAYERS]
    assert not lost, "say in LAYERS where the new part belongs"


def test_imports_point_down():
    actual = {path: list(breaches(path, source)) for path, source in SOURCES.items()}
    assert {path: up for path, up in actual.items() if up} == {}


@pytest.mark.parametrize(("path", "line"), [
    ("releases/sums.py", "from jaxminimax.algorithms import sgda"),
    ("algorithms/sgda.py", "from jaxminimax import accounting"),
    ("algorithms/sgda.py", "from jaxminimax.accounting.epsilon_delta import epsilon"),
    ("algorithms/sgda.py", "from .. import drivers"),
    ("accounting/curve.py", "import jaxminimax.releases"),
    ("accounting/curve.py", "from ..gradients import clipped_sum"),
    ("mechanism/query.py", "from .. import gradients"),
    ("mechanism/query.py", "import jaxminimax"),
    ("noise/floats.py", "def f():\n    from jaxminimax import mechanism"),
    ("base/types.py", "from jaxminimax import noise"),
    ("audit/audit.py", "from jaxminimax import tables"),
    ("checkup.py", "from jaxminimax.apps.tables import columns"),
    ("apps/tables/rule.py", "from jaxminimax.apps import commands"),
])
def test_an_import_that_points_up_is_caught(path, line):
    assert len(list(breaches(path, line))) == 1


def tools_of_tables(path, source):
    """The packages for tables, pages and command lines that a file of the engine imports."""
    names = {name.split(".")[0] for node in ast.walk(ast.parse(source))
             for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                          [node.module or ""] if isinstance(node, ast.ImportFrom) else [])}
    return names & {"argparse", "csv", "html", "pandas", "polars", "pyarrow"}


def test_the_engine_has_no_tools_of_tables():
    engine = {path: source for path, source in SOURCES.items()
              if LAYERS[part_of(path)] < LAYERS["apps"]}
    assert len(engine) > 100
    assert {path for path, source in engine.items() if tools_of_tables(path, source)} == set()
    assert tools_of_tables("f.py", "def f():\n    import pandas.api") == {"pandas"}


# --- tests ---


def test_every_module_has_a_test_file_of_its_name_or_is_listed():
    tests = pathlib.Path(__file__).parent
    listed = [name for names in TESTED_IN.values() for name in names.split()]
    assert [name for name in TESTED_IN if not (tests / f"{name}.py").exists()] == []
    assert {name for name in listed if f"{name}.py" not in SOURCES} == set()

    def has_its_own(path):
        """Or one of its folder's name: gradients/test_ghost.py."""
        module = pathlib.PurePosixPath(path).with_suffix("")
        return any((tests / place.parent / f"test_{place.name.lstrip('_')}.py").exists()
                   for place in (module, module.parent))

    modules = {path for path in SOURCES if not path.endswith("__init__.py")}
    own = {path for path in modules if has_its_own(path)}
    assert modules - own == {f"{name}.py" for name in listed}


# --- releases ---


def test_algorithms_hand_data_to_releases_and_to_nothing_else():
    actual = {path: leaks(SOURCES[path], RELEASES | FEED | {"update"}) + misplaced(SOURCES[path])
              for path in in_folder("algorithms/")}
    assert {path: lines for path, lines in actual.items() if lines} == {}


@pytest.mark.parametrize("path", in_folder("algorithms/"))
def test_data_have_their_name_wherever_an_algorithm_gets_them(path):
    source = SOURCES[path]
    updates = [parameters(f) for f in functions(source) if getattr(f, "name", "") == "update"]
    if path == "algorithms/descent.py":  # two more: the description, and the rule of the step
        updates = [names[:5] for names in updates if names[5:] == ["described", "rule"]]
    assert updates == [["key", "state", "data", "hyper", "problem"]] * (path not in SHARED)
    assert not {"init", "mechanism", "rule"} & {
        getattr(f, "name", "") for f in functions(source) if "data" in parameters(f)}
    reads = "data" in {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    assert reads == (path not in SHARED)


@pytest.mark.parametrize("line", [
    "return descent.update(key, state, data + 1, hyper, problem)",
    "return descent.update(key, state, data[:9], hyper, problem)",
    "return descent.update(key, data, state, hyper, problem)",
    "return descent.update(key, state, *data, hyper, problem)",
    "return descent.update(key, state, data, data, problem)",
    "return descent.update(key, state, hyper=hyper, data=data, problem=problem)",
    "return optimiser.update(key, state, data, hyper, problem)",
    "return make(hyper).update(key, state, data, hyper, problem)",
    "return update(key, state, data, hyper, problem)",
])
def test_an_update_gets_the_data_of_the_one_that_calls_it(line):
    source = ("from jaxminimax.algorithms import descent\n"
              "def update(key, state, data, hyper, problem):\n    ")
    fine = source + "return descent.update(key, state, data, hyper, problem, described, rule)"
    assert leaks(fine, RELEASES | {"update"}) == misplaced(fine) == []
    planted = source + line
    assert set(leaks(planted, RELEASES | {"update"}) + misplaced(planted)) == {3}


def test_drivers_hand_data_on_and_do_nothing_else_with_them():
    for name in ("runs", "many_runs", "long_runs"):
        for part in ast.parse(SOURCES[f"drivers/{name}.py"]).body:
            if getattr(part, "name", "") not in AHEAD:
                assert leaks(ast.unparse(part), ONWARDS | SHAPES) == [], (name, part)


@pytest.mark.parametrize("name", ["tune", "search"])
def test_a_search_hands_its_data_on_before_and_after_it_is_calibrated(name):
    (function,) = (f for f in functions(SOURCES["drivers/tuning.py"])
                   if getattr(f, "name", "") == name)
    assert leaks(ast.unparse(function), ONWARDS | SHAPES) == []


def test_nothing_above_the_releases_imports_what_they_are_made_of():
    """Without the sampler, the clipped sums and the noise there is no other release."""
    actual = {path: [name for name in modules(path, source)
                     if any(f"{name}.".startswith(f"{tool}.") for tool in TOOLS)]
              for path, source in SOURCES.items() if LAYERS[part_of(path)] in (6, 7)}
    assert {path: names for path, names in actual.items() if names} == {}


@pytest.mark.parametrize("path", in_folder("releases/"))
def test_keys_budgets_and_samples_have_one_place_each(path):
    """A second key scheme, guard or draw could disagree with the first."""
    tree = ast.parse(SOURCES[path])
    random = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
              and ast.unparse(node.value) == "jax.random"}
    words = {"releases/release_keys.py": {"key_impl", "key_data", "wrap_key_data"},
             "releases/made_releases.py": {"key_data"},
             "releases/point_keys.py": {"fold_in", "key_data"},
             # compares derived keys, under another key than the run's
             "releases/data_flow.py": {"key", "key_data", "key_impl"}}
    assert random <= words.get(path, set())
    guards = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Compare)
              and "spent" in {getattr(x, "id", "") for x in (node.left, *node.comparators)}]
    assert bool(guards) == (path == "releases/budget.py")
    draws = [name for name in modules(path, SOURCES[path]) if name == "mechanism.sampling.draw"]
    assert bool(draws) == (path == "releases/reading.py")


def test_every_release_function_is_watched():
    functions = [f for path in in_folder("releases/") for f in ast.parse(SOURCES[path]).body
                 if getattr(f, "name", "").startswith("release")]
    assert len(functions) > 5
    for function in functions:
        assert function.name in RELEASES


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
    assert leaks(source + "return g", RELEASES) == []
    assert set(leaks(source + line, RELEASES)) == {3}


# --- what is nowhere ---


def test_no_function_takes_a_standard_deviation():
    """The noise is one product, in releases; only the generator below has the result."""
    names = {"sigma", "std", "stddev", "standard_deviation"}
    assert [(path, getattr(function, "name", "lambda")) for path, source in SOURCES.items()
            for function in functions(source) if names & set(parameters(function))] == [
                ("noise/floats.py", "gaussian")]


def test_commands_alone_keep_programs():
    callers = {path for path, source in SOURCES.items() if "keep_programs" in {
        getattr(node, "attr", getattr(node, "id", getattr(node, "name", None)))
        for node in ast.walk(ast.parse(source))}}
    assert callers == {"__main__.py", "base/own_files.py"}
    named = set(re.findall(r'"(jax_\w+)"', SOURCES["base/own_files.py"]))
    assert named == {"jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"}


def test_the_package_leaves_the_configuration_of_jax_alone():
    """But for one inner solve in float64, in a scope, and for commands."""
    actual = {(path, name) for path, source in SOURCES.items()
              for node in ast.walk(ast.parse(source))
              for name in ([node.attr] if isinstance(node, ast.Attribute) else
                           node.name.split(".") if isinstance(node, ast.alias) else [])
              if name in ("config", "enable_x64")}
    assert actual == {("base/tree.py", "enable_x64"), ("base/own_files.py", "config")}


def test_names_of_our_own_modules_have_no_default():
    benchmarks = (ROOT.parent / "benchmarks").rglob("*.py")
    sources = SOURCES | {str(path): path.read_text() for path in benchmarks}
    assert {path for path, source in sources.items() if names_in_doubt(source)} == set()


@pytest.mark.parametrize("line", ["import jaxminimax as us", "from jaxminimax import noise as us",
                                  "import benchmarks.privacy.audit as us"])
def test_a_default_for_a_name_of_our_own_is_caught(line):
    assert names_in_doubt(f"{line}\ngetattr(us.noise, 'SPARE', 1.0)") == [2]
    assert not names_in_doubt(f"{line}\ngetattr(us.noise, 'SPARE'), getattr(query, 'steps', 1)")


def test_nothing_is_left_for_later():
    words = ("NotImplementedError", "TODO", "FIXME")
    assert [path for path, source in SOURCES.items() if any(x in source for x in words)] == []
