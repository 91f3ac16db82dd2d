"""What was measured, as JSON, as a table and as two pictures; parts that were not measured anew keep their rows."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import markdown_table
from benchmarks.speed.measure import Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from torchllp.files import write_atomically
from torchllp.report.figure import save_figure

Parts = dict[str, dict[str, Any]]
"""By letter: the ``title``, ``where`` it was measured, and the ``rows``."""
COLOURS = {True: "tab:green", False: "tab:red", None: "tab:blue"}
WORDS = {True: "met", False: "missed"}


def where() -> dict[str, Any]:
    """The machine, the versions and the day."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "torchvision", "pillow")},
        "date": time.strftime("%Y-%m-%d"),
    }


def save(folder: Path, letter: str, title: str, rows: Sequence[Row]) -> str:
    """Put the rows of a part in place of those it had, write all files, and return the table of all parts."""
    folder.mkdir(exist_ok=True)
    file = folder / "speed.json"
    parts: Parts = json.loads(file.read_text()) if file.is_file() else {}
    parts[letter] = {"title": title, "where": where(), "rows": [row.to_json() for row in rows]}
    parts = dict(sorted(parts.items()))
    text = table(parts)
    write_atomically(file, (json.dumps(parts, indent=1) + "\n").encode())
    write_atomically(folder / "speed.md", text.encode())
    save_figure(_ratios(parts), folder / "speed.png")
    if curves := [row["curve"] for part in parts.values() for row in part["rows"] if row["curve"] is not None]:
        save_figure(_growth(curves), folder / "growth.png")
    return text


def table(parts: Parts) -> str:
    """All rows in Markdown, and below them where they were measured."""
    heads = ["", "what", "against", "goal", "ratio", "min to max", "n", "limit", "ours"]
    lines = [_cells(letter, row) for letter, part in parts.items() for row in part["rows"]]
    text = markdown_table(heads, lines, num_words=4) + "\n"
    measured: dict[str, list[str]] = {}
    for letter, part in parts.items():
        at = part["where"]
        versions = ", ".join(f"{name} {at[name]}" for name in ("python", "torch", "torchvision", "pillow"))
        words = f"{at['cpu']}, {at['cores']} cores, one thread; {versions}; {at['date']}"
        measured.setdefault(words, []).append(letter)
    return text + "".join(f"{', '.join(letters)}: {words}.\n" for words, letters in measured.items())


def _cells(letter: str, row: Mapping[str, Any]) -> list[str]:
    ratio, goal = row["ratio"], row["goal"]
    met = "" if goal is None else " ".join(f"{kind} {number:g}: {WORDS[row['met']]}" for kind, number in goal.items())
    return [
        letter,
        row["name"],
        row["against"],
        met,
        _short(ratio["median"]),
        f"{_short(ratio['min'])} to {_short(ratio['max'])}",
        str(ratio["n"]),
        "" if row["limit"] is None else _short(row["limit"]),
        "" if row["seconds"] is None else _time(row["seconds"]["ours"]),
    ]


def _short(number: float) -> str:
    """Three digits, or as many as a large number has."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _ratios(parts: Parts) -> Figure:
    """A panel a part: the median of each ratio, from its smallest to its largest, with its goal and its limit."""
    drawn = {letter: [r for r in part["rows"] if r["curve"] is None] for letter, part in parts.items()}
    drawn = {letter: rows for letter, rows in drawn.items() if rows}
    heights = [len(rows) + 1.5 for rows in drawn.values()] or [1.0]
    figure = Figure(figsize=(11, 0.32 * sum(heights) + 1), layout="constrained", dpi=120)
    if drawn:
        panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, (letter, rows) in zip(panels, drawn.items(), strict=True):
            panel.set_title(f"{letter}. {parts[letter]['title']}", loc="left", fontweight="bold", fontsize="medium")
            _draw_ratios(panel, rows)
    figure.supxlabel(
        "ratio: median, smallest to largest (green: goal met, red: missed)   |: goal   ◇: limit", fontsize="small"
    )
    return figure


def _draw_ratios(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [1.0]
    for height, row in enumerate(reversed(rows)):
        ratio, colour = row["ratio"], COLOURS[row["met"]]
        axes.plot([ratio["min"], ratio["max"]], [height, height], color=colour, alpha=0.4, linewidth=5)
        axes.plot(ratio["median"], height, "o", color=colour)
        shown += [ratio["min"], ratio["max"]]
        for goal in (row["goal"] or {}).values():
            axes.plot(goal, height, "|", color="black", markersize=14, markeredgewidth=2)
            shown.append(goal)
        if row["limit"] is not None:
            axes.plot(row["limit"], height, "D", color="black", fillstyle="none", markersize=5)
            shown.append(row["limit"])
    axes.set_yticks(range(len(rows)), [f"{row['name']}\nagainst {row['against']}" for row in reversed(rows)])
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.axvline(1, color="grey", linewidth=0.8)
    if max(shown) > 10 * min(shown):
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g} x"))
    axes.grid(axis="x", alpha=0.3)


def _growth(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Costs by size, and from the largest size down what they would be if they were proportional to it."""
    titles = {"seconds": "CPU time, forward and backward", "bytes": "peak memory of the tensors made"}
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=120)
    for axes, (unit, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for number, curve in enumerate(c for c in curves if c["unit"] == unit):
            sizes, costs, colour = curve["sizes"], curve["costs"], f"C{number}"
            label = f"{curve['of']} (slope {curve['slope_of_upper_half']:.2f})"
            axes.loglog(sizes, costs, "o-", color=colour, label=label)
            axes.loglog(sizes, [costs[-1] * size / sizes[-1] for size in sizes], ":", color=colour)
        axes.set_title(title)
        axes.set_xlabel("number (dotted: proportional to it)")
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure
