"""What `llp train`, `llp pretrain` and `llp tune` share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import console, show_table
from torchllp.cli.flags import check_flags
from torchllp.config import Config, Options, OwnInstances, Section, plain_value, read_toml
from torchllp.data import BAG_MAKERS
from torchllp.errors import ProcessLost
from torchllp.launched import is_first
from torchllp.presets import TABLE
from torchllp.presets import preset as find_preset

if TYPE_CHECKING:
    from torchllp.engine.train import Observer
    from torchllp.job import Job
    from torchllp.run import Run

Flag = Parameter(negative="")
Repeated = Parameter(negative_iterable="")


def section(title: str) -> Parameter:
    """The settings of one section of the config, as flags under a title of their own."""
    return Parameter(name="*", group=title, negative_iterable="")


def name_of_data(dataset: str, own: OwnInstances) -> str:
    """What the data are called in the name of a run."""
    return Path(own.instances or own.images or "").stem if own.is_given else dataset


def check_resume_alone(given: Mapping[str, object]) -> None:
    """Raise if anything was said, by its parameter's name, beside ``--resume``."""
    others = [value for name, value in given.items() if name != "resume"]
    if any(value is not None and value is not False for value in others):
        raise Misuse("--resume continues a run by its own settings: leave the other options out")


def flags_of(
    *,
    method: str | None = None,
    set: list[str] | None,
    model: str | None,
    model_set: list[str] | None,
    seed: int | None,
    init_from: Path | None,
    **sections: Section | None,
) -> dict[str, Any]:
    """What was said on the command line, as a layer for :meth:`Config.layered`."""
    flags: dict[str, Any] = {
        name: section.model_dump(exclude_unset=True) for name, section in sections.items() if section is not None
    }
    flags["method"] = ({"name": method} if method else {}) | {"options": options("--set", set)}
    flags["model"] = ({"name": model} if model else {}) | {"options": options("--model-set", model_set)}
    flags |= {"seed": seed} if seed is not None else {}
    flags |= {"init_from": str(init_from)} if init_from is not None else {}
    return flags


def config_of(flags: Mapping[str, Any], config: Path | None, preset: str | None) -> Config:
    """What `llp train` trains by: the preset, the model of ``init_from``, the file and the flags, in this order."""
    layers = (layer_of(config), flags)
    plain = Config.layered(*layers)
    check_flags(plain, *layers)
    kind = TABLE if plain.own.is_table else plain.data.dataset
    recipe_layer = find_preset(preset or "quick", kind, plain.model.name, frozen=plain.freeze)
    return Config.layered(recipe_layer, model_of(plain.init_from), *layers)


def layer_of(config: Path | None) -> dict[str, Any]:
    """What the file of --config says, as a layer."""
    if config is None:
        return {}
    Config.read(config)  # raises, with the name of the file, if something in it is wrong
    return read_toml(config)


def default_name(config: Config, what: str) -> str:
    """A name by data set, by what is done, by bags and seed."""
    data, own = config.data, config.own
    bags = f"bag{data.bag_size}" if data.bags == "random" else f"{data.bags}{data.bag_size}"
    if data.largest_bag is not None:
        bags += f"to{data.largest_bag}"
    if data.bags == "natural":
        bags = f"natural-{'-'.join(own.bag_column)}"
    if data.bags not in BAG_MAKERS:
        bags = Path(data.bags).stem
    if data.bags_from is not None:
        bags = f"bags-from-{Path(data.bags_from).name}"
    return f"{name_of_data(data.dataset, own)}-{what}-{bags}-seed{config.seed}"


def model_of(init_from: str | None) -> dict[str, Any]:
    """The model of the run whose weights are the first ones: what is trained, unless another one is named."""
    from torchllp.run import Run

    return {} if init_from is None else {"model": Run.open(Path(init_from)).config.model.model_dump()}


def options(flag: str, pairs: list[str] | None) -> Options:
    """``["a=1", "b=false"]`` as plain values: booleans, whole numbers, numbers, else strings."""
    values: Options = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Misuse(f"{flag} takes NAME=VALUE, not {pair!r}")
        values[key.replace("-", "_")] = plain_value(value)
    return values


def train_or_stop(
    config: Config | None,
    path: Path,
    *,
    overwrite: bool = False,
    kind: "type[Job] | None" = None,
    profile: bool = False,
) -> "Run":
    """Train (or, without a config, continue) one run, and say how to go on if it is stopped on the way.

    With ``profile`` say at the end what took the time of a step.
    """
    from torchllp import job
    from torchllp.cli.progress import show_progress
    from torchllp.run import Run

    run = Run(path)
    before = _when_written(run.config_file)
    try:
        with show_progress(quiet=not is_first()) as observer, _profiled(observer, path, wanted=profile) as observer:
            if config is None:
                return job.resume(path, observer=observer, kind=kind or job.Job)
            return job.start(config, path, overwrite=overwrite, observer=observer, kind=kind or job.Job)
    except BaseException as error:
        lost = isinstance(error, ProcessLost)
        stopped = lost or (is_first() and not isinstance(error, Exception))
        is_ours = config is None or _when_written(run.config_file) != before  # not one that was to be replaced
        if stopped and is_ours and run.config_file.is_file():
            console.print(f"stopped; continue by: {run.how_to_resume}", soft_wrap=True)
        raise


def _when_written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


@contextmanager
def _profiled(observer: "Observer", path: Path, *, wanted: bool) -> "Iterator[Observer]":
    """The observer, or one that also profiles the first process; its findings are shown when the training is over."""
    from torchllp.engine.profile import PROFILED, SKIPPED, WARM_UP, Profile
    from torchllp.run import Run

    if not wanted or not is_first():
        yield observer
        return
    file = Run(path).profile_file
    profile = Profile(observer, file)
    try:
        yield profile
    finally:
        profile.close()
    if not profile.costs:
        console.print(f"no profile: it takes {SKIPPED + WARM_UP + PROFILED} steps", style="yellow")
        return
    rows = [
        (cost.name, f"{100 * cost.share:.1f} %", f"{cost.milliseconds:.2f} ms", f"{cost.calls:.1f}")
        for cost in profile.costs[:5]
    ]
    show_table(["cost", "share", "time a step", "calls a step"], rows, title=f"The largest costs of {PROFILED} steps")
    console.print(f"profile: {file} (open it in chrome://tracing or Perfetto)", soft_wrap=True)
