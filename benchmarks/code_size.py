"""Size of the library's source, and what tracing one round of `sgda` calls in it.

    python -m benchmarks.code_size [--json FILE]

Lines of code are those with a token that is neither a comment nor a docstring. Calls are of the
library's own functions, generators that go on included, while one warm round is traced.
"""

import argparse
import ast
import collections
import io
import itertools
import json
import pathlib
import sys
import tokenize
import types

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from jaxminimax import Saddle

ROOT = pathlib.Path(jmm.__file__).parent
APART = {"apps", "audit", "__main__.py", "tables.py", "estimators.py"}
LEDGER = ("ledger.py", "filters.py", "tuning.py")
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
          tokenize.ENDMARKER)


def kinds(source: str) -> dict[str, int]:
    """Lines of a file, of code, of docstrings, with a comment, of imports."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if (isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                and ast.get_docstring(node)):
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments += not token.string.startswith(("# type:", "# noqa", "# ---"))
        elif token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    imports = sum((node.end_lineno or 0) - node.lineno + 1 for node in ast.walk(tree)
                  if isinstance(node, ast.Import | ast.ImportFrom))
    return {"files": 1, "lines": source.count("\n"), "code": len(code - docstrings),
            "docstrings": len(docstrings), "comments": comments, "imports": imports}


def folders() -> dict[str, collections.Counter[str]]:
    """The same of every folder of the package, and of all of it."""
    sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts
        counted = kinds(path.read_text())
        core = part[0] not in APART and not path.name.startswith(LEDGER)
        folder = "/".join(part[:-1][:1 + (part[0] == "apps")]) or "(top)"
        for name in (folder, "all", *(["core"] if core else [])):
            sums[name].update(counted)
    return sums


def traced_round() -> dict[str, dict[str, int]]:
    """Calls, functions and files of one round, and moves from one file to another.

    Of all of it, and of the way of three arguments: the calls that get the very same object.
    """
    n, d = 200, 3
    data = (jnp.ones((n, d)), jnp.zeros(n))
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.7, radius=Saddle(10.0, 10.0))
    query = jmm.Query(clip=Saddle(5.0, 1.0), sampling=jmm.Poisson(rate=0.05), population=n,
                      noise_multiplier=Saddle(3.0, 3.0))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
    start = jmm.problems.auc_start(jnp.zeros(d))
    state, update = jmm.sgda.init(start, hyper), jmm.sgda.update
    calls: list[tuple[str, str, list[str]]] = []
    followed: dict[str, object] = {}

    def profile(frame: types.FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            given = frame.f_locals.values()
            calls.append((code.co_filename, code.co_qualname, [
                name for name, value in followed.items() if any(x is value for x in given)]))

    def traced(key: jax.Array) -> object:
        calls.clear()
        followed.update(key=key, data=data, hyper=hyper)
        sys.setprofile(profile)
        try:
            return update(key, state, data, hyper, problem)
        finally:
            sys.setprofile(None)

    for _ in range(2):  # the first one fills caches
        jax.eval_shape(lambda key: traced(key), jax.random.key(0))

    def counted(name: str | None = None) -> dict[str, int]:
        way = [(file, function) for file, function, names in calls if name is None or name in names]
        return {"calls": len(way), "functions": len(set(way)), "files": len({x for x, _ in way}),
                "moves": sum(a[0] != b[0] for a, b in itertools.pairwise(way))}

    return {"one traced round": counted()} | {f"way of {x}": counted(x) for x in followed}


def main(argv: list[str] | None = None) -> None:
    """Prints all of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    args = parser.parse_args(argv)
    sums, traced = folders(), traced_round()
    columns = ("files", "lines", "code", "docstrings", "comments", "imports")
    print(f"{'folder':14}" + "".join(f"{name:>12}" for name in columns))
    for name, row in sorted(sums.items(), key=lambda item: item[1]["code"]):
        print(f"{name:14}" + "".join(f"{row[column]:12,}" for column in columns))
    total = sums["all"]
    print(f"imports are {100 * total['imports'] / total['code']:.1f} % of the code; "
          f"{len(dir(jmm))} names at the top level")
    for what, counts in traced.items():
        print(f"{what}: " + ", ".join(f"{value:,} {name}" for name, value in counts.items()))
    if args.json:
        args.json.write_text(json.dumps({"folders": sums, "round": traced,
                                         "names": len(dir(jmm))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
