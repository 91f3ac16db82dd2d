"""Tables of bags with noise, rounded counts, and classes that were not observed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import here
from own_tables import BAGS, CLASSES, OURS, ROWS, SHORT, write
from torchllp import Bags, Run, load_table

SIZES = np.array([BAGS["good"], BAGS["bad"]]).sum(0)
ROUNDED = {"bag": BAGS["bag"], **{name: [5 * round(count / 5) for count in BAGS[name]] for name in CLASSES}}


def some_missing(table: Mapping[str, Any], rows: range) -> dict[str, Any]:
    """The same table, of whose second class nothing is said in some rows."""
    return {**table, "bad": [None if row in rows else value for row, value in enumerate(table["bad"])]}


def train(folder: Path, bags: Mapping[str, Any], *flags: str, name: str = "bags.csv") -> Any:
    write(folder / "rows.csv", ROWS)
    write(folder / name, bags)
    files = ["--instances", folder / "rows.csv", "--bags", folder / name]
    return here("train", *files, *OURS, *SHORT, "--run", folder / "run", *flags)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_empty_cells_are_classes_that_were_not_observed(suffix: str, tmp_path: Path) -> None:
    result = train(tmp_path, some_missing(BAGS, range(3, 10)), name=f"bags.{suffix}")
    assert result.returncode == 0, result.stderr
    assert f"{tmp_path}/bags.{suffix}: in 7 bags not all classes were observed" in result.stdout.splitlines()
    run = Run.open(tmp_path / "run")
    bags = Bags.load(run.bags_file)
    assert bags.noise is None and (~bags.observed).sum(0).tolist() == [0, 7]
    np.testing.assert_allclose(bags.proportions[:, 0], np.array(BAGS["good"]) / SIZES)
    assert run.summary["accuracy"]["last"] > 0.85


@pytest.mark.parametrize("scale", [["--bag-noise-scale", "5"], ["--bag-noise-column", "step"]])
def test_rounded_counts(scale: list[str], tmp_path: Path) -> None:
    bags = {**ROUNDED, "step": [None, *[5] * 39]} if "--bag-noise-column" in scale else ROUNDED
    bags = {name: list(values) for name, values in bags.items()}
    for name in CLASSES if "step" in bags else ():
        bags[name][0] = BAGS[name][0]  # the first bag is exact
    flags = ["--bag-values", "counts", "--bag-noise", "rounding", *scale, "--method", "dllp", "--set", "bag_term=count"]
    result = train(tmp_path, bags, *flags, "--choose-by", "count_score")
    assert result.returncode == 0, result.stderr
    assert f"bags.csv: the counts are not exact: rounding, by {'step' if 'step' in bags else '5.0'}" in result.stdout
    run = Run.open(tmp_path / "run")
    known = Bags.load(run.bags_file)
    assert known.noise is not None and known.noise.kind == "rounding"
    assert known.noise.scale.tolist() == [0.0 if "step" in bags else 5.0, *[5.0] * 39]
    np.testing.assert_array_equal(known.reported, np.array([bags[name] for name in CLASSES]).T)
    assert run.config.own.bag_noise == "rounding"
    assert all(math.isfinite(row["held_out/count_score"]) for row in run.metrics())
    assert (
        here(
            "check", "--instances", tmp_path / "rows.csv", "--bags", tmp_path / "bags.csv", *flags[:6], *OURS
        ).returncode
        == 0
    )


def test_one_column_of_noisy_shares() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 40)
    share = np.array(BAGS["bad"]) / SIZES + noise
    rows = {name: ROWS[name] for name in ("bag", "x")}
    table = {"bag": BAGS["bag"], "bad": share}
    _, bags = load_table(
        rows, table, class_column="bad", bag_values="proportions", bag_noise="gaussian", bag_noise_scale=0.1
    )
    np.testing.assert_allclose(bags.reported, np.stack([1 - share, share], 1) * SIZES[:, None])
    np.testing.assert_allclose(bags.noise.scale, 0.1 * SIZES)
    assert share.min() < 0 and bags.proportions.min() == 0


def test_a_run_with_noise_is_continued_exactly(tmp_path: Path) -> None:
    flags = ["--bag-values", "counts", "--bag-noise", "rounding", "--bag-noise-scale", "5", "--set", "bag_term=count"]
    assert train(tmp_path, ROUNDED, *flags).returncode == 0
    run = Run.open(tmp_path / "run")
    whole = (run.path / "model.safetensors").read_bytes()
    (tmp_path / "bags.csv").unlink()  # the run has its own
    config = (run.path / "config.toml").read_text()
    assert 'bag_noise = "rounding"' in config
    again = here(
        "train",
        "--bags-from",
        run.path,
        "--instances",
        tmp_path / "rows.csv",
        *OURS,
        *SHORT,
        "--set",
        "bag_term=count",
        "--run",
        tmp_path / "again",
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == whole
    assert json.loads((tmp_path / "again" / "summary.json").read_text())["num_bags"] == 40


NOISE = ["--bag-noise", "gaussian", "--bag-noise-scale", "1", "--bag-values", "counts"]
BAD: dict[str, tuple[Mapping[str, Any], list[str], int, str]] = {
    "more observed than there are": (
        some_missing({**BAGS, "good": [99, *BAGS["good"][1:]]}, range(1)),
        [],
        1,
        "{bags}, row 2: the observed classes sum to 99, more than the bag's 11 rows",
    ),
    "noise without its scale": (
        BAGS,
        NOISE[:2] + NOISE[4:],
        1,
        "{bags}: how large the gaussian noise is has to be said",
    ),
    "two scales": ({**BAGS, "sd": [1] * 40}, [*NOISE, "--bag-noise-column", "sd"], 1, "{bags}: how large the gaussian"),
    "a scale without noise": (
        BAGS,
        NOISE[2:],
        2,
        "--bag-noise-scale is the scale of a noise: say which by --bag-noise",
    ),
    "counts or shares": (BAGS, NOISE[:4], 1, "{bags}: noisy numbers may sum to anything, so it cannot be found out"),
    "no such noise": (BAGS, ["--bag-noise", "poisson"], 2, ""),
    "negative scale": (BAGS, ["--bag-noise", "gaussian", "--bag-noise-scale", "-1"], 2, ""),
    "epsilon of 0": (
        BAGS,
        ["--bag-noise", "laplace", "--bag-noise-scale", "0", "--bag-values", "counts"],
        1,
        "{bags}: the scale of laplace noise is its epsilon, above 0, not 0",
    ),
    "no such column": (BAGS, [*NOISE[:2], *NOISE[4:], "--bag-noise-column", "sd"], 1, "{bags}: no column 'sd'"),
    "negative in a column": (
        {**BAGS, "sd": [-1, *[1] * 39]},
        [*NOISE[:2], *NOISE[4:], "--bag-noise-column", "sd"],
        1,
        "{bags}, row 2, column 'sd': -1 is negative",
    ),
    "nothing rounds to it": (
        {**ROUNDED, "bad": [500, *ROUNDED["bad"][1:]]},
        ["--bag-noise", "rounding", "--bag-noise-scale", "5", "--bag-values", "counts"],
        1,
        "{bags}: bag '000': class 'bad' is 500, to which none of 0 to 11 rounds by steps of 5",
    ),
    "normalize": (BAGS, [*NOISE, "--normalize"], 2, "--normalize has nothing to do: noisy numbers may sum to anything"),
    "not for transport": (
        some_missing(BAGS, range(2)),
        ["--method", "rot"],
        1,
        "rot needs the share of every class, and",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_one_line_and_leave_nothing(name: str, tmp_path: Path) -> None:
    bags, flags, code, message = BAD[name]
    result = train(tmp_path, bags, *flags)
    assert (result.returncode, result.stdout) == (code, "")
    if message:
        assert result.stderr.startswith(f"llp: {message.format(bags=tmp_path / 'bags.csv')}"), result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bags.csv", "rows.csv"]


def test_counts_that_are_to_be_respected_are_all_observed(tmp_path: Path) -> None:
    assert train(tmp_path, BAGS).returncode == 0
    missing = write(tmp_path / "missing.csv", some_missing(BAGS, range(1)))
    result = here("predict", tmp_path / "run", tmp_path / "rows.csv", "--respect-counts", missing)
    assert result.returncode == 1
    assert result.stderr.startswith(f"llp: {missing} needs the share of every class, and class 'bad' was not observed")
