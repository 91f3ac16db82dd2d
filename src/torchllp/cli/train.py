"""`llp train`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import console, percent, show_table
from torchllp.cli.training import (
    Flag,
    Repeated,
    check_resume_alone,
    config_of,
    default_name,
    flags_of,
    section,
    train_or_stop,
)
from torchllp.config import Compute, Config, DataConfig, Named, OwnConfig, Recipe
from torchllp.errors import LLPError, first_line
from torchllp.launched import is_first

if TYPE_CHECKING:
    from torchllp.run import Run


def train(
    *,
    method: str | None = None,
    set: Annotated[list[str] | None, Repeated] = None,
    bag_term: str | None = None,
    pseudo_labels: str | None = None,
    weights: str | None = None,
    model: str | None = None,
    model_set: Annotated[list[str] | None, Repeated] = None,
    seed: int | None = None,
    run: Annotated[Path | None, Parameter(name=["--run", "--run-dir"])] = None,
    init_from: Path | None = None,
    freeze: Annotated[bool, Flag] = False,
    compare: Annotated[list[str] | None, Repeated] = None,
    overwrite: Annotated[bool, Flag] = False,
    profile: Annotated[bool, Flag] = False,
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
    bag_term
        The same as --set bag_term=: mean, count, gaussian or moments.
    pseudo_labels
        Of --method custom: argmax, transport, transport-hard, assignment or none.
    weights
        Of --method custom: dual-entropy, instance, bag, truncated-gaussian, threshold or none.
    model
        Model (see `llp models`). [default: small-cnn for images, mlp for tables]
    model_set
        OPTION=VALUE of the model, such as stem=imagenet; can be repeated.
    seed
        Decides bags, first weights, order and views. [default: 0]
    run
        Directory of the run (torchrun takes --run for an option of its own: say --run-dir there). Default: named by
        data set, method, bags and seed in runs.
    init_from
        Run, of `llp train` or `llp pretrain`, whose weights are the first ones; its model is the default.
    freeze
        Train a new head alone, on the features of --init-from, which are computed once.
    compare
        Another method to train by the same recipe on the same bags, for the table; can be repeated.
    overwrite
        Replace the run if it exists.
    profile
        Record some steps by PyTorch's profiler, and show what takes their time.
    resume
        Continue this run from its last whole epoch, exactly.
    preset
        Recipe: quick, paper or reference (the paper's published code). [default: quick]
    config
        TOML file like a run's config.toml.
    """
    given = locals()
    if resume is not None:
        from torchllp.run import Run

        check_resume_alone(given)
        if is_first() and Run(resume).is_finished:
            console.print(f"{resume}: is finished already; nothing is trained", soft_wrap=True)
        _show_results([train_or_stop(None, resume)])
        return
    pieces = {"bag_term": bag_term, "pseudo_labels": pseudo_labels, "weights": weights}
    flags = flags_of(
        method=method,
        set=[*(set or []), *(f"{name}={piece}" for name, piece in pieces.items() if piece is not None)],
        model=model,
        model_set=model_set,
        seed=seed,
        init_from=init_from,
        data=data,
        own=own,
        recipe=recipe,
        compute=compute,
    )
    flags |= {"freeze": True} if freeze else {}
    main = config_of(flags, config, preset)
    what = f"{main.method.name}-frozen" if main.freeze else main.method.name
    path = run or Path("runs", default_name(main, what))
    configs = {path: main}
    for name in compare or []:
        other = main.model_copy(update={"method": Named(name=name)})
        if other in configs.values():
            raise Misuse(f"--compare {name}: that is what is trained already")
        configs[path.with_name(f"{path.name}-{name}")] = other
    from torchllp.engine.distributed import join, together

    join()
    together(lambda: _check_all(configs, overwrite=overwrite))
    runs = [train_or_stop(settings, where, overwrite=overwrite, profile=profile) for where, settings in configs.items()]
    _show_results(runs)


def _check_all(configs: dict[Path, Config], *, overwrite: bool) -> None:
    """Find what is wrong with the last of several runs before the first one has trained for hours."""
    from torchllp.methods import create_method
    from torchllp.methods.method import Method
    from torchllp.run import Run
    from torchllp.supervision import load_supervision

    methods = [create_method(config.method.name, **config.method.options) for config in configs.values()]
    for (path, config), method in zip(configs.items(), methods, strict=True):
        if not method.learns_classes:
            raise Misuse(f"{config.method.name} learns features and no classes: it is for `llp pretrain`")
        if method.uses_labels and config.own.is_given and config.own.label_column is None:
            raise LLPError(f"{config.method.name} learns from labels: name their column by --label-column")
        Run.check_free(path, overwrite=overwrite)
    demanding = [method for method in methods[1:] if type(method).check is not Method.check]
    if demanding:  # the first one's bags, which are those of all, are checked before it trains in any case
        _, _, bags, _ = load_supervision(next(iter(configs.values())))
        for method in demanding:
            method.check(bags)


def _shown(run: "Run", epochs: tuple[str, ...]) -> list[str]:
    """Accuracy at these epochs, and the oracle's gap; where nothing has a label, the error of held-out bags' shares."""
    summary = run.summary
    if summary["accuracy"]:
        return [percent(summary["accuracy"].get(epoch)) for epoch in epochs] + [percent(summary["oracle_gap"])]
    return [percent(summary["metrics"].get(epoch, {}).get("held_out/bag_mae")) for epoch in epochs]


def _show_results(runs: "list[Run]") -> None:
    """The table of all runs, the curves of the first beside the accuracy of the others, and where they are."""
    if not is_first():
        return
    from torchllp.report.comparison import named
    from torchllp.report.curves import save_curves

    def label(run: "Run") -> str:
        return named(run.summary["method"])

    first, summary = runs[0], runs[0].summary
    if len(runs) > 1 or not first.curves_file.exists():  # a finished run that is resumed has its picture
        save_curves(
            first.curves_file,
            {label(run): run.metrics() for run in runs},
            title=f"{label(first)} on {summary['dataset']}, bags of {summary['bag_size']}",
            tests_on=summary["tests_on"],
            chosen=summary["metrics"].get("chosen"),
        )
    has_labels = bool(summary["accuracy"])
    epochs = ("last", "chosen", "oracle") if has_labels else ("last", "chosen")
    heads = [f"{epoch} epoch" for epoch in epochs] + ["gap"] * has_labels
    rows = [(label(run), run.summary["bag_size"], *_shown(run, epochs), str(run.path)) for run in runs]
    title = f"Accuracy on the {summary['tests_on']} of {summary['dataset']}"
    if not has_labels:
        title = "Mean error of a class's share in held-out bags"
    show_table(["method", "bag size", *heads, "run"], rows, title=title)
    if "chosen" in summary["metrics"]:
        console.print("chosen: the best epoch by the bags that were held out", style="dim")
    if has_labels:
        console.print("oracle: the best epoch by test labels, which nobody has in practice", style="dim")
        console.print("gap: how much better the oracle's epoch is than the chosen one", style="dim")
    for run in runs:
        for alarm in run.summary["alarms"]:
            console.print(f"{label(run)}: {alarm}", style="yellow", soft_wrap=True)
    console.print(f"curves: {first.curves_file}", soft_wrap=True)
    for run in runs:
        _write_report(run)


def _write_report(run: "Run") -> None:
    """Write the page of a run and say where it is; the training is finished, and stays so if that fails."""
    from torchllp.report.write import write_report

    try:
        if not run.report_file.exists():  # a finished run that is resumed has one
            write_report(run.report_file, [run], device=run.config.compute.device)
    except Exception as error:
        again = f"llp report {shlex.quote(str(run.path))}"
        message = f"the run is finished, but its report was not written: {first_line(error)} (try again by {again})"
        console.print(message, style="yellow", soft_wrap=True)
    else:
        console.print(f"report: {run.report_file}", soft_wrap=True)
