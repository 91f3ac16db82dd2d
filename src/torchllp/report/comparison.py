"""Several runs side by side: those that differ in their seed alone are one line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torchllp.errors import LLPError
from torchllp.methods import METHODS
from torchllp.run import Run, read_json

NOT_SETTINGS = ("seed", "compute", "method", "model", "data.dataset", "data.data_dir", "data.download", "data.bag_size")
"""What makes no difference to what is compared, or is shown apart."""
SUITE_FILE = "suite.json"
"""In a directory of a suite's results: what was asked for, and the names of the runs, which are beside it."""
RUNS_BEFORE = ("init_from", "data.bags_from")
"""Settings that name another run, which is another one for each seed."""


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The finished runs at these paths.

    The directory of a suite's results stands for the suite's runs; another that is no run, for all finished ones below.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        if Run(path).config_file.is_file():
            found = [Run(path)]
        elif (path / SUITE_FILE).is_file():
            found = [Run(runs_beside(path) / name) for name in read_json(path / SUITE_FILE)["runs"]]
        else:
            found = _below(path)
        if not found:
            raise LLPError(f"{path}: neither a run nor a directory with finished runs")
        for run in found:
            _ = run.summary  # raises unless it is finished
            runs.setdefault(run.path.resolve(), run)
    return list(runs.values())


def runs_beside(results: Path) -> Path:
    """The directory of the runs that a directory of a suite's results is of."""
    return (results if results.name else results.absolute()).parent


def _below(path: Path) -> list[Run]:
    runs = []
    for folder, folders, _ in os.walk(path):
        folders.sort()
        run = Run(Path(folder))
        if run.config_file.is_file():
            folders.clear()  # nothing in a run is one
            runs += [run] if run.is_finished else []
    return runs


def learns_classes(run: Run) -> bool:
    """Whether the run trained a classifier; else it was pre-trained."""
    return METHODS.load(run.config.method.name).learns_classes


def named(choice: Mapping[str, Any]) -> str:
    """A method or model by its name, with the options that are not its defaults.

    >>> named({"name": "ahil", "options": {"beta_bag": 5.0}})
    'ahil (beta_bag=5)'
    """
    shown = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in choice["options"].items()}
    options = ", ".join(f"{name}={value}" for name, value in shown.items())
    return f"{choice['name']} ({options})" if options else choice["name"]


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seed alone."""

    runs: Sequence[Run]
    method: str
    """With what else tells it from the other groups of the same data."""

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """One a seed, the first: the same training twice says no more than once."""
        by_seed: dict[int, dict[str, Any]] = {}
        for run in self.runs:
            by_seed.setdefault(run.config.seed, run.summary)
        return list(by_seed.values())

    @property
    def dataset(self) -> str:
        return self.summaries[0]["dataset"]

    @property
    def tests_on(self) -> str:
        return self.summaries[0]["tests_on"]

    @property
    def bag_size(self) -> str:
        return " / ".join(dict.fromkeys(summary["bag_size"] for summary in self.summaries))

    @property
    def has_labels(self) -> bool:
        return any(summary["accuracy"] for summary in self.summaries)

    def values(self, epoch: str) -> list[float]:
        """Accuracy of the runs at this epoch, as far as known; without labels, the error of held-out bags' shares."""
        if self.has_labels:
            return [summary["accuracy"][epoch] for summary in self.summaries if epoch in summary["accuracy"]]
        of_epoch = (summary["metrics"].get(epoch, {}).get("held_out/bag_mae") for summary in self.summaries)
        return [value for value in of_epoch if value is not None]


def compare(runs: Sequence[Run]) -> list[Group]:
    """The runs in groups, by data set, then by bag size, then in their order; those without classes are left out."""
    runs = [run for run in runs if learns_classes(run)]
    summaries = {run: run.summary for run in runs}
    settings = {run: _settings(run) for run in runs}
    groups: dict[tuple[object, ...], list[Run]] = {}
    alike: dict[tuple[object, ...], list[Run]] = {}  # those that a label has to be told from
    for run in sorted(runs, key=lambda run: (_data_of(summaries[run]), int(summaries[run]["bag_size"].split()[0]))):
        config, summary = run.config, summaries[run]
        data = _data_of(summary)
        # Where sizes are drawn they differ between seeds, but not what they are drawn from.
        size = config.data.bag_size if config.data.bags_from is None else summary["bag_size"]
        choices = (str(summary["method"]), str(summary["model"]), tuple(settings[run].items()))
        groups.setdefault((data, size, *choices), []).append(run)
        alike.setdefault((data, summary["bag_size"], named(summary["method"])), []).append(run)
    others = {run: together for together in alike.values() for run in together}
    return [Group(members, _label(members[0], others[members[0]], settings)) for members in groups.values()]


def names_of(groups: Sequence[Group]) -> list[str]:
    """A name a group: its method, with its data set and its bags where there are several."""
    has_data, has_sizes = (len({*values}) > 1 for values in ([g.dataset for g in groups], [g.bag_size for g in groups]))
    return [
        ", ".join([group.dataset] * has_data + [group.method] + [f"bags of {group.bag_size}"] * has_sizes)
        for group in groups
    ]


def names_of_runs(runs: Sequence[Run]) -> dict[Run, str]:
    """The name of each run's group, with its seed where the group has several runs; no two are alike."""
    groups = compare(runs)
    names: dict[Run, str] = {}
    for of_group, group in zip(names_of(groups), groups, strict=True):
        for run in group.runs:
            name = f"{of_group}, seed {run.config.seed}" if len(group.runs) > 1 else of_group
            names[run] = f"{name}, run {len(names) + 1}" if name in names.values() else name
    return names


def _data_of(summary: Mapping[str, Any]) -> tuple[str, str]:
    return summary["dataset"], summary["tests_on"]


def _settings(run: Run) -> dict[str, str]:
    """What a run was trained by, besides what :data:`NOT_SETTINGS` says, by the settings' names."""
    flat = _flat(run.config.model_dump())
    kept = {name: value for name, value in flat.items() if not name.startswith(NOT_SETTINGS)}
    return {name: _kind_of_run(value) if name in RUNS_BEFORE else str(value) for name, value in kept.items()}


def _kind_of_run(path: str | None) -> str:
    """What a run that another one began from was trained by, so that runs of other seeds are of one kind."""
    if path is None or not Run(Path(path)).config_file.is_file():
        return str(path)
    before = Run(Path(path))
    return str((before.config.method, before.config.model, _settings(before)))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _label(run: Run, alike: Sequence[Run], settings: Mapping[Run, Mapping[str, str]]) -> str:
    """A run's method, with its model and settings where others, of the method on the same bags, have other ones."""
    models = [named(run.summary["model"])] * (len({named(other.summary["model"]) for other in alike}) > 1)
    values = _flat(run.config.model_dump())
    differ = [f"{name.rpartition('.')[2]} {_in_words(values[name])}" for name in _differing(alike, settings)]
    return ", ".join([named(run.summary["method"]), *models, *differ])


def _in_words(value: object) -> str:
    """The value of a setting.

    >>> [_in_words(value) for value in (0.1, None, True, ("id", "name"), ())]
    ['0.1', 'unset', 'on', 'id + name', 'unset']
    """
    if value is None or value == ():
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " + ".join(value) if isinstance(value, tuple) else str(value)


def differing_settings(groups: Sequence[Group]) -> list[str]:
    """What the runs of these groups differ in besides seed, method and bag size, which makes comparing them unfair."""
    runs = [run for group in groups for run in group.runs]
    models = ["model"] * (len({named(run.summary["model"]) for run in runs}) > 1)
    return models + [name.rpartition(".")[2] for name in _differing(runs, {run: _settings(run) for run in runs})]


def _differing(runs: Sequence[Run], settings: Mapping[Run, Mapping[str, str]]) -> list[str]:
    return [name for name in settings[runs[0]] if len({settings[run].get(name) for run in runs}) > 1]
