"""Measurements of the library, in folders by question; each is `python -m benchmarks.NAME`.

Whatever folder a module lies in, its name is `benchmarks.NAME`: folders may be rearranged, and no
command, no import and no document changes.
"""

import pathlib

__path__ += sorted(str(p) for p in pathlib.Path(__file__).parent.iterdir()
                   if p.is_dir() and p.name not in ("results", "__pycache__"))
