"""Executes the notebooks from top to bottom and keeps what they print and draw.

    python -m benchmarks.notebooks [NAME ...] [--quick]

Each `notebooks/NAME.py` becomes `notebooks/NAME.ipynb` with its outputs. Text between the cells may
state what an `assert` in them checks, so a notebook whose text is wrong stops here, and its file
stays as it was. `--quick` runs with fewer sizes and writes nothing. Needs the extra `notebooks`;
notebooks 02, 05 and 06 read data files (JAXMINIMAX_DATA).
"""

import importlib
import os
import pathlib
import re
import time
from typing import Any

from benchmarks.common import report

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
_CELL = re.compile(r"\S*ipykernel_\d+/\d+\.py:")  # a file of one execution, in warnings
_NEEDS = ("jupytext", "nbclient", "nbformat", "ipykernel")


def execute(name: str, jupytext: Any, nbclient: Any) -> Any:
    """The notebook with fresh outputs.

    Raises:
      nbclient.exceptions.CellExecutionError: where a cell fails, an `assert` for example.
    """
    notebook = jupytext.read(FOLDER / f"{name}.py")
    nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3",
                            resources={"metadata": {"path": str(FOLDER)}}).execute()
    for cell in notebook.cells:  # when and where a cell ran is not worth a line of a difference
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = _CELL.sub("", output["text"].replace(
                    f"{FOLDER.parent}{os.sep}", ""))
    return notebook


def main(argv: list[str] | None = None) -> int:
    """Executes the notebooks named, or all."""
    parser = report.Parser(__file__, __doc__.split("\n\n")[0])
    parser.add_argument("name", nargs="*", help=f"default: all of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer sizes; writes nothing")
    args = parser.parse_args(argv)
    for name in args.name:
        if name not in NAMES:
            parser.error(f"got {name!r}; the notebooks are {', '.join(NAMES)}")
    try:
        jupytext, nbclient, nbformat, _ = map(importlib.import_module, _NEEDS)
    except ImportError as error:
        parser.error(f"{error.name} is not installed; pip install 'jaxminimax[notebooks]'")
    if args.quick:
        os.environ["JAXMINIMAX_QUICK"] = "1"
    failed = []
    for name in args.name or NAMES:
        start = time.perf_counter()
        try:
            notebook = execute(name, jupytext, nbclient)
        except nbclient.exceptions.CellExecutionError as error:
            failed.append(name)
            report.say(f"{name}: {error}")
            continue
        if not args.quick:
            nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - start:.0f} s")
    if failed:
        report.say(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
