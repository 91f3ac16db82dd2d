"""Drawings that look alike, and the files that they become."""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from torchllp.errors import LLPError
from torchllp.files import check_directory_of, write_atomically

FORMATS = ("png", "svg", "pdf")
LONGEST_NAME = 28
TEXT_STAYS_TEXT = {"svg.fonttype": "none", "pdf.fonttype": 42}
SAME_EVERY_TIME = {"svg.hashsalt": "torchllp"}
NO_DATE: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check_figure(path: Path, also: Iterable[str] = ()) -> None:
    """Raise if a picture cannot be written to this path, before anything is computed for it.

    ``also`` are the endings of files that it could be written to in words.
    """
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        *endings, last = [*(f".{ending}" for ending in FORMATS), *also]
        raise LLPError(f"{path}: pictures are written to {', '.join(endings)} or {last} files")
    check_directory_of(path)


def save_figure(figure: Figure, path: Path, *, for_print: bool = False) -> None:
    """Write the figure whole, or not at all; ``for_print`` has no margin, and pixels are finer."""
    options = {"dpi": 300, "bbox_inches": "tight", "pad_inches": 0.02} if for_print else {}
    write_atomically(path, _rendered(figure, path.suffix.lower().removeprefix("."), **options))


def as_svg(figure: Figure) -> str:
    """The figure as an element of an HTML page, in which no id is anything but the content that it stands for."""
    svg = _rendered(figure, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])


def _rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(TEXT_STAYS_TEXT | SAME_EVERY_TIME), warnings.catch_warnings():
        # Names in scripts that the font lacks: where text stays text, the reader's own font has them.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        figure.savefig(buffer, format=kind, metadata=NO_DATE[kind], **options)
    return buffer.getvalue()


def plain(text: str) -> str:
    """A name from data as matplotlib is to show it: without mathematics between ``$``, in one line.

    >>> print(plain("$x$"))
    \\$x\\$
    """
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name cut in the middle: names that begin alike often end differently.

    >>> short("a name that is longer than its place")
    'a name that i…than its place'
    """
    half = longest // 2
    return name if len(name) <= longest else f"{name[: half - 1]}…{name[-half:]}"


def colours(number: int) -> Sequence[str]:
    """As many colours that can be told apart, as far as there are."""
    if number <= 20:  # these maps are lists of colours
        listed = matplotlib.colormaps["tab10" if number <= 10 else "tab20"]
        return [to_hex(listed(i)) for i in range(number)]
    return [to_hex(matplotlib.colormaps["turbo"](i / (number - 1))) for i in range(number)]
