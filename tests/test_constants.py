"""A constant that one function uses stands in that function, with its reason.

A constant is a name in capitals that a module of the library assigns at its level. Who uses it is
read from the source: functions of its own module by name, those of other modules by import or as an
attribute. What tests, benchmarks or documents name stands where they find it.
"""

import ast
import collections
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxminimax"
CAPITALS = re.compile(r"_?[A-Z][A-Z0-9_]*")
IDENTITY = "one object for the whole process, by which programs or callers are known"
# of one function each, and why they stand outside of it
ALLOWED = {
    "apps/tables/certified.py _SHARE": IDENTITY,
    "apps/tables/check.py _CENTRED": IDENTITY,
    "apps/tables/rule.py HALF_BALL": IDENTITY,
    "base/programs.py _CONSTANTS": IDENTITY,
    "base/programs.py _CONTEXTS": IDENTITY,
    "base/programs.py _TRACED_FOR": IDENTITY,
    "base/saved_json.py _KINDS": "its function calls itself for every value of a file",
    "drivers/point_register.py _MAKING": IDENTITY,
    "mechanism/costs.py SCORE": "one of four units of noise, next to each other",
    "mechanism/distinct.py _PLACES": "keys are folded with it or with _TIES, which differs",
    "releases/release_operation.py _INSIDE": IDENTITY}
# how many more there are, at most: whoever moves one lowers the number
MOST: dict[str, int] = {}


class Module(NamedTuple):
    """What a module assigns, imports and reads.

    Attributes:
      constants: assigned at the level of the module.
      imports: names that import statements mention, of modules and of what is in them.
      readers: functions by the names that they read.
      owners: functions by the attributes that they read.
    """

    constants: set[str]
    imports: set[str]
    readers: dict[str, set[str]]
    owners: dict[str, set[str]]

    def users(self, stem: str, name: str) -> set[str]:
        """Functions that read a constant of another module."""
        if stem not in self.imports:
            return set()
        return {*self.owners.get(name, ()), *(
            self.readers.get(name, ()) if name in self.imports else ())}


def assigned(tree: ast.Module) -> Iterator[str]:
    """Names that are assigned at the level of a module."""
    for node in tree.body:
        targets = (node.targets if isinstance(node, ast.Assign) else
                   [node.target] if isinstance(node, ast.AnnAssign) else [])
        yield from (x.id for target in targets for x in ast.walk(target)
                    if isinstance(x, ast.Name))


@functools.cache
def read(text: str) -> Module:
    """Reads a module: methods are functions, and what is defined in a function is a part of it."""
    tree = ast.parse(text)
    imports: set[str] = set()
    readers: dict[str, set[str]] = collections.defaultdict(set)
    owners: dict[str, set[str]] = collections.defaultdict(set)

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update((getattr(node, "module", None) or "").split("."))
            imports.update(x for alias in node.names for x in alias.name.split("."))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            readers[node.id].add(function)
        elif isinstance(node, ast.Attribute):
            owners[node.attr].add(function)
        for child in ast.iter_child_nodes(node):
            inside = f"{function}.{child.name}" if isinstance(child, ast.ClassDef) or (
                isinstance(child, ast.FunctionDef) and not function.endswith("()")) else function
            visit(child, inside + "()" * (
                isinstance(child, ast.FunctionDef) and not function.endswith("()")))

    visit(tree, "")
    return Module({x for x in assigned(tree) if CAPITALS.fullmatch(x)}, imports, readers,
                  owners)


def of_one_function(modules: dict[str, Module]) -> set[str]:
    """Returns the constants that one function of all these modules reads, or none."""
    found = set()
    for path, module in modules.items():
        stem = pathlib.PurePath(path).with_suffix("").name
        stem = pathlib.PurePath(path).parent.name if stem == "__init__" else stem
        for name in module.constants:
            count = len(module.readers.get(name, ())) + sum(
                len(x.users(stem, name)) for x in modules.values() if x is not module)
            if count <= 1:
                found.add(f"{path} {name}")
    return found


@functools.cache
def elsewhere() -> dict[pathlib.Path, str]:
    """Texts of tests, benchmarks and documents."""
    return {path: path.read_text(encoding="utf-8") for folder in ("tests", "benchmarks", "docs")
            for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
            and path != pathlib.Path(__file__)}


def is_named(constant: str) -> bool:
    """Says if a test, a benchmark or a document reads a constant, or replaces it by its name."""
    path, name = constant.split()
    stem = pathlib.PurePath(path).stem
    for place, text in elsewhere().items():
        if re.search(rf"\b{name}\b", text) and stem in text:
            if place.suffix == ".md" and f"{stem}.{name}" in text:
                return True
            if place.suffix == ".py" and stem in (module := read(text)).imports and (
                    module.users(stem, name) or f'"{name}"' in text):
                return True
    return False


@pytest.mark.slow
def test_a_constant_of_one_function_stands_in_it():
    modules = {str(path.relative_to(PACKAGE)): read(path.read_text(encoding="utf-8"))
               for path in sorted(PACKAGE.rglob("*.py"))}
    found = {x for x in of_one_function(modules) if not is_named(x)}
    assert not ALLOWED.keys() - found, "these have several users, or are gone: leave them out"
    further = sorted(found - ALLOWED.keys())
    by_folder = collections.Counter(x.split("/")[0] for x in further)
    assert all(count <= MOST.get(folder, 0) for folder, count in by_folder.items()), "\n".join([
        f"move each into the one function that uses it ({dict(by_folder)}):", *further])


def test_every_way_of_using_a_constant_counts():
    first = """
ONE, TWO = 1, 2
_SEVERAL: int = 3
BY_CLASS = 4
OF_OTHERS = 5
Alias = int
def f(x=ONE):
    def inside(): return TWO
    return inside() + TWO
class A:
    field = BY_CLASS
    def g(self): return _SEVERAL
    def h(self): return _SEVERAL
"""
    second = """
from package.first import OF_OTHERS
from package import first
def f(): return OF_OTHERS
def g(): return first.OF_OTHERS
"""
    third = "def f(): return other.TWO"  # of a module of another name
    modules = {name: read(text) for name, text in (
        ("first.py", first), ("second.py", second), ("third.py", third))}
    assert modules["first.py"].constants == {"ONE", "TWO", "_SEVERAL", "BY_CLASS", "OF_OTHERS"}
    assert of_one_function(modules) == {"first.py ONE", "first.py TWO", "first.py BY_CLASS"}
