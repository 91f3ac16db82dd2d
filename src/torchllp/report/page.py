"""An HTML page that needs nothing but itself: sections of text, tables, drawings and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from torchllp.errors import LLPError
from torchllp.files import check_directory_of
from torchllp.report.figure import as_svg
from torchllp.report.numbers import are_numbers


@dataclass(frozen=True)
class Text:
    """A paragraph; ``is_warning`` sets it off."""

    kind: ClassVar[str] = "text"
    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and what is to be said of them."""

    kind: ClassVar[str] = "facts"
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table of texts, in which columns of numbers are aligned right."""

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @cached_property
    def is_number(self) -> list[bool]:
        """Of each column."""
        return [are_numbers(row[i] for row in self.rows) for i in range(len(self.head))]


@dataclass(frozen=True)
class Drawings:
    """Figures side by side where there is room, each with words for those who cannot see it."""

    kind: ClassVar[str] = "drawings"
    figures: Sequence[tuple[str, Figure]]

    @cached_property
    def drawn(self) -> list[tuple[str, str, float]]:
        """The words, the SVG and the width in inches of each; matplotlib has escaped what is in it."""
        return [(words, as_svg(figure), figure.get_figwidth()) for words, figure in self.figures]


@dataclass(frozen=True)
class Picture:
    """A small picture (a data URI), lines below it, and whether they say something wrong (None: nobody knows)."""

    uri: str
    lines: Sequence[str]
    is_wrong: bool | None = None


@dataclass(frozen=True)
class Gallery:
    """Small pictures."""

    kind: ClassVar[str] = "gallery"
    caption: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Legend:
    """What is drawn in which colour, where there is no room for it in the drawings."""

    kind: ClassVar[str] = "legend"
    colours: Mapping[str, str]


Block = Text | Facts | Table | Drawings | Legend | Gallery


@dataclass(frozen=True)
class Section:
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]


def render(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML. All texts are escaped here: names of classes, columns and files may be anything."""
    environment = Environment(loader=PackageLoader("torchllp.report"), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html").render(title=title, sections=sections)


def check_page(path: Path) -> None:
    """Raise if a page cannot be written to this path, before anything is computed for it."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise LLPError(f"{path}: pages are written to .html files")
    check_directory_of(path)
