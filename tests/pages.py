"""A page as its reader finds it."""

import re
from html.parser import HTMLParser
from pathlib import Path

EMPTY = {"meta", "img", "link", "br", "input", "hr"}


class Page(HTMLParser):
    """The sections of a page by their titles: text, tables as lists of rows, pictures as (data URI, lines)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.text: dict[str, str] = {"": ""}
        self.tables: dict[str, list[list[list[str]]]] = {"": []}
        self.pictures: dict[str, list[tuple[str, list[str]]]] = {"": []}
        self.section = ""
        self.feed(self.source)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "table":
            self.tables[self.section].append([])
        elif tag == "tr":
            self.tables[self.section][-1].append([])
        elif tag in ("td", "th"):
            self.tables[self.section][-1][-1].append("")
        elif tag == "img":
            self.pictures[self.section].append((dict(attrs)["src"] or "", []))
        elif tag == "div" and "figcaption" in self.open:
            self.pictures[self.section][-1][1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            return
        if self.open[-1:] == ["h2"]:
            self.section = data
            self.text[data], self.tables[data], self.pictures[data] = "", [], []
        self.text[self.section] += re.sub(r"\s+", " ", data)
        if self.open[-1:] in (["td"], ["th"]):
            self.tables[self.section][-1][-1][-1] += data
        elif "figcaption" in self.open and self.open[-1] == "div":
            self.pictures[self.section][-1][1][-1] += data

    @property
    def titles(self) -> list[str]:
        return [title for title in self.text if title]
