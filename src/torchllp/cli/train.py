"""`llp train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import console, percent, show_table
from torchllp.cli.flags import check_flags
from torchllp.config import Compute, Config, DataConfig, Named, Options, OwnConfig, Recipe, read_toml
from torchllp.data import BAG_MAKERS
from torchllp.errors import LLPError
from torchllp.presets import TABLE
from torchllp.presets import preset as find_preset

if TYPE_CHECKING:
    from torchllp.run import Run

Flag = Parameter(negative="")
Repeated = Parameter(negative_iterable="")


def section(title: str) -> Parameter:
    """The settings of one section of the config, as flags under a title of their own."""
    return Parameter(name="*", group=title, negative_iterable="")


def train(
    *,
    method: str | None = None,
    set: Annotated[list[str] | None, Repeated] = None,
    model: str | None = None,
    model_set: Annotated[list[str] | None, Repeated] = None,
    seed: int | None = None,
    run: Path | None = None,
    init_from: Path | None = None,
    compare: Annotated[list[str] | None, Repeated] = None,
    overwrite: Annotated[bool, Flag] = False,
    resume: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    data: Annotated[DataConfig | None, section("Data set and bags")] = None,
    own: Annotated[OwnConfig | None, section("Your own data")] = None,
    recipe: Annotated[Recipe | None, section("Recipe (tables: AdamW, 50 epochs, steps of 256)")] = None,
    compute: Annotated[Compute | None, section("Compute")] = None,
) -> None:
    """Train a classifier from bags and their proportions.

    Without options: L2P-AHIL on scikit-learn's digits in bags of 16. Your own data: --instances or --images, with
    --bags. What is said by a flag goes before the config file, that before the preset, and that before the defaults
    shown here, setting by setting.

    Parameters
    ----------
    method
        Method (see `llp methods`). [default: ahil]
    set
        NUMBER=VALUE of the method, such as beta_bag=5; can be repeated.
    model
        Model (see `llp models`). [default: small-cnn for images, mlp for tables]
    model_set
        OPTION=VALUE of the model, such as stem=imagenet; can be repeated.
    seed
        Decides bags, first weights, order and views. [default: 0]
    run
        Directory of the run. Default: named by data set, method, bags and seed in runs.
    init_from
        Run whose trained weights are the first ones.
    compare
        Another method to train by the same recipe on the same bags, for the table; can be repeated.
    overwrite
        Replace the run if it exists.
    resume
        Continue this run from its last whole epoch, exactly.
    preset
        Recipe: quick, paper or reference (the paper's published code). [default: quick]
    config
        TOML file like a run's config.toml.
    """
    if resume is not None:
        others = (
            method,
            set,
            model,
            model_set,
            seed,
            run,
            init_from,
            compare,
            preset,
            config,
            data,
            own,
            recipe,
            compute,
        )
        if overwrite or any(value is not None for value in others):
            raise Misuse("--resume continues a run by its own settings: leave the other options out")
        _show_results([_train_or_stop(None, resume, overwrite=False)])
        return
    flags: dict[str, Any] = {
        name: section.model_dump(exclude_unset=True)
        for name, section in (("data", data), ("own", own), ("recipe", recipe), ("compute", compute))
        if section is not None
    }
    flags["method"] = ({"name": method} if method else {}) | {"options": _options("--set", set)}
    flags["model"] = ({"name": model} if model else {}) | {"options": _options("--model-set", model_set)}
    flags |= {"seed": seed} if seed is not None else {}
    flags |= {"init_from": str(init_from)} if init_from is not None else {}
    layers = (read_toml(config) if config else {}, flags)
    plain = Config.layered(*layers)
    check_flags(plain, *layers)
    kind = TABLE if plain.own.is_table else plain.data.dataset
    main = Config.layered(find_preset(preset or "quick", kind, plain.model.name), *layers)
    path = run or Path("runs", _default_name(main))
    configs = {path: main}
    for name in compare or []:
        other = main.model_copy(update={"method": Named(name=name)})
        if other in configs.values():
            raise Misuse(f"--compare {name}: that is what is trained already")
        configs[path.with_name(f"{path.name}-{name}")] = other
    _check_all(configs, overwrite=overwrite)
    runs = [_train_or_stop(settings, where, overwrite=overwrite) for where, settings in configs.items()]
    _show_results(runs)


def _check_all(configs: dict[Path, Config], *, overwrite: bool) -> None:
    """Find what is wrong with the last of several runs before the first one has trained for hours."""
    from torchllp.methods import create_method
    from torchllp.run import Run

    for path, config in configs.items():
        method = create_method(config.method.name, **config.method.options)
        if method.uses_labels and config.own.is_given and config.own.label_column is None:
            raise LLPError(f"{config.method.name} learns from labels: name their column by --label-column")
        Run.check_free(path, overwrite=overwrite)


def _default_name(config: Config) -> str:
    data, own = config.data, config.own
    name = data.dataset if not own.is_given else Path(own.instances or own.images or "").stem
    bags = f"bag{data.bag_size}" if data.bags == "random" else f"{data.bags}{data.bag_size}"
    if data.largest_bag is not None:
        bags += f"to{data.largest_bag}"
    if data.bags == "natural":
        bags = f"natural-{'-'.join(own.bag_column)}"
    if data.bags not in BAG_MAKERS:
        bags = Path(data.bags).stem
    if data.bags_from is not None:
        bags = f"bags-from-{Path(data.bags_from).name}"
    return f"{name}-{config.method.name}-{bags}-seed{config.seed}"


def _options(flag: str, pairs: list[str] | None) -> Options:
    """``["a=1", "b=false"]`` as plain values: booleans, whole numbers, numbers, else strings."""
    options: Options = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Misuse(f"{flag} takes NAME=VALUE, not {pair!r}")
        options[key.replace("-", "_")] = _plain(value)
    return options


def _plain(value: str) -> bool | int | float | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _train_or_stop(config: Config | None, path: Path, *, overwrite: bool) -> "Run":
    """Train (or, without a config, continue) one run, and say how to go on if it is stopped on the way."""
    from torchllp import job
    from torchllp.cli.progress import show_progress
    from torchllp.run import Run

    try:
        with show_progress() as observer:
            if config is None:
                return job.resume(path, observer=observer)
            return job.start(config, path, overwrite=overwrite, observer=observer)
    except BaseException as error:
        run = Run(path)
        stopped = not isinstance(error, Exception)
        if stopped and run.config_file.is_file():
            console.print(f"stopped; continue by: {run.how_to_resume}", markup=False, soft_wrap=True)
        raise


def _label(run: "Run") -> str:
    """A run's method, with the options that are not its defaults."""
    method = run.summary["method"]
    options = ", ".join(f"{name}={value}" for name, value in method["options"].items())
    return f"{method['name']} ({options})" if options else method["name"]


def _shown(run: "Run", epochs: tuple[str, ...]) -> list[str]:
    """Accuracy at these epochs; where nothing has a label, the error of held-out bags' shares."""
    summary = run.summary
    if summary["accuracy"]:
        return [percent(summary["accuracy"].get(epoch)) for epoch in epochs]
    return [percent(summary["metrics"].get(epoch, {}).get("held_out/bag_mae")) for epoch in epochs]


def _show_results(runs: "list[Run]") -> None:
    """The table of all runs, the curves of the first beside the accuracy of the others, and where they are."""
    from torchllp.report.curves import save_curves

    first, summary = runs[0], runs[0].summary
    if len(runs) > 1 or not first.curves_file.exists():  # a finished run that is resumed has its picture
        save_curves(
            first.curves_file,
            {_label(run): run.metrics() for run in runs},
            title=f"{_label(first)} on {summary['dataset']}, bags of {summary['bag_size']}",
            tests_on=summary["tests_on"],
            chosen=summary["metrics"].get("chosen"),
        )
    has_labels = bool(summary["accuracy"])
    epochs = ("last", "chosen", "oracle") if has_labels else ("last", "chosen")
    rows = [(_label(run), run.summary["bag_size"], *_shown(run, epochs), str(run.path)) for run in runs]
    title = f"Accuracy on the {summary['tests_on']} of {summary['dataset']}"
    if not has_labels:
        title = "Mean error of a class's share in held-out bags"
    show_table(["method", "bag size", *(f"{epoch} epoch" for epoch in epochs), "run"], rows, title=title)
    if "chosen" in summary["metrics"]:
        console.print("chosen: the epoch with the smallest error on held-out bags", style="dim")
    if has_labels:
        console.print("oracle: the best epoch by test labels, which nobody has in practice", style="dim")
    console.print(f"curves: {first.curves_file}", markup=False, soft_wrap=True)
