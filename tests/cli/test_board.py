"""The live table of a suite's runs on a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from torchllp.cli import board as board_module
from torchllp.cli.board import Board
from torchllp.engine.train import Observer
from torchllp.experiments.directory import State, SuiteDirectory
from torchllp.experiments.scales import SCALES
from torchllp.experiments.suite import Cell
from torchllp.experiments.worker import train


def cell(method: str, seed: int) -> Cell:
    made = SCALES["quick"].cell("digits", method, 16, seed, recipe={"epochs": 1})
    return made.over({"model": {"name": "linear"}})


def test_each_run_is_counted_by_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(force_terminal=True, width=120, file=io.StringIO(), color_system=None, markup=False)
    monkeypatch.setattr(board_module, "console", screen)
    cells, directory = [cell("dllp", 0), cell("dllp", 1), cell("ahil", 0)], SuiteDirectory(tmp_path)
    board = Board(cells, directory)
    with board.on_screen(), directory.claim(cells[2]):
        train(cells[0], directory, Observer())
        board.refresh_now()
        shown = io.StringIO()
        Console(file=shown, width=120).print(board._shown(board.progress.look()))
    words, head, *rows = shown.getvalue().splitlines()
    assert words.startswith(f"running: {cells[2].name} (epoch 1 of 1); about ") and words.endswith(" left")
    assert head.split() == ["data", "row", *State]
    assert [row.split() for row in rows] == [["digits", "dllp", "1", "1"], ["digits", "ahil", "1"]]
    place = {state: head.index(state) + len(state) for state in State}  # columns are aligned right
    assert rows[0][place["waiting"] - 1] == rows[0][place["finished"] - 1] == rows[1][place["running"] - 1] == "1"
    assert f"1 of 3  {cells[0].name}: last " in screen.file.getvalue()
