"""Every link inside of the built site leads somewhere, and nothing is loaded from elsewhere.

    python docs/site/check_links.py build/site

Links to other sites are not followed. Scripts, styles, pictures and fonts from there are refused:
the site is read without a network. Prints what is wrong, and ends with 1 if there is anything.
"""

import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}
NAMED = {"canonical", "alternate"}  # links that load nothing


class Page(HTMLParser):
    """The links of a page, what it loads, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects links, and names of places."""
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values and not (tag == "link" and values.get("rel") in NAMED):
                self.links.append((values[name], (tag, name) in LOADED))


def wrong(site: pathlib.Path) -> list[str]:
    """Returns one line for each wrong link of a site."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8"))
             for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        for link, loaded in page.links:
            parts = urlsplit(link)
            where = f"{path.relative_to(site.resolve())}: {link}"
            if parts.scheme in ("data", "mailto"):
                continue
            if parts.scheme or parts.netloc:
                faults += [f"{where} is loaded from elsewhere"] * loaded
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.path.startswith("/"):  # only the page for what is not found has such links
                faults += [where] * (path.name != "404.html")
            elif not target.is_file():
                faults.append(f"{where} is not there")
            elif parts.fragment and target in pages and (
                    unquote(parts.fragment) not in pages[target].places):
                faults.append(f"{where} is no place of that page")
    return faults


if __name__ == "__main__":
    faults = wrong(pathlib.Path(sys.argv[1]))
    print("\n".join(faults) or "All links lead somewhere, and nothing is loaded from elsewhere.")
    raise SystemExit(bool(faults))
