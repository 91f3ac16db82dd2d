"""`llp pretrain`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from torchllp.cli import Misuse
from torchllp.cli.console import console, show_table
from torchllp.cli.flags import check_flags
from torchllp.cli.training import (
    Flag,
    Repeated,
    check_resume_alone,
    flags_of,
    layer_of,
    model_of,
    name_of_data,
    section,
    train_or_stop,
)
from torchllp.config import Compute, Config, NamedData, OwnInstances, PretrainingRecipe
from torchllp.presets import TABLE, pretraining

if TYPE_CHECKING:
    from torchllp.run import Run


def pretrain(
    *,
    set: Annotated[list[str] | None, Repeated] = None,
    model: str | None = None,
    model_set: Annotated[list[str] | None, Repeated] = None,
    seed: int | None = None,
    run: Path | None = None,
    init_from: Path | None = None,
    overwrite: Annotated[bool, Flag] = False,
    resume: Path | None = None,
    config: Path | None = None,
    data: Annotated[NamedData | None, section("Data set")] = None,
    own: Annotated[OwnInstances | None, section("Your own data")] = None,
    recipe: Annotated[PretrainingRecipe | None, section("Recipe")] = None,
    compute: Annotated[Compute | None, section("Compute")] = None,
) -> None:
    """Learn features of the training instances without any label (SimCLR), for `llp train --init-from` to start from.

    Your own data: --instances or --images, with the columns named as for `llp train`, so that no bag, id or label is
    learnt from. What is said by a flag goes before the config file, and that before the defaults shown here.

    Parameters
    ----------
    set
        NUMBER=VALUE of SimCLR, such as temperature=0.2; can be repeated.
    model
        Model (see `llp models`). [default: resnet50 for images, mlp for tables]
    model_set
        OPTION=VALUE of the model, such as stem=imagenet; can be repeated.
    seed
        Decides first weights, order and views. [default: 0]
    run
        Directory of the run. Default: named by data set, model and seed in runs.
    init_from
        Run whose weights are the first ones.
    overwrite
        Replace the run if it exists.
    resume
        Continue this run from its last whole epoch, exactly.
    config
        TOML file like a run's config.toml.
    """
    given = locals()
    from torchllp.pretraining import Pretraining

    if resume is not None:
        check_resume_alone(given)
        _show_result(train_or_stop(None, resume, kind=Pretraining))
        return
    flags = flags_of(
        set=set,
        model=model,
        model_set=model_set,
        seed=seed,
        init_from=init_from,
        data=data,
        own=own,
        recipe=recipe,
        compute=compute,
    )
    layers = (layer_of(config), flags)
    plain = Config.layered(*layers)
    check_flags(plain, *layers, needs_bags=False)
    if plain.compute.compile:
        raise Misuse("--compile does nothing here: SimCLR calls the features of a model, not the model")
    kind = TABLE if plain.own.is_table else plain.data.dataset
    main = Config.layered(pretraining(kind), model_of(plain.init_from), *layers)
    name = f"{name_of_data(main.data.dataset, main.own)}-{main.method.name}-{main.model.name}-seed{main.seed}"
    _show_result(train_or_stop(main, run or Path("runs", name), overwrite=overwrite, kind=Pretraining))


def _show_result(run: "Run") -> None:
    """What was reached, the curves, and what to do with it."""
    from torchllp.report.curves import save_contrast_curves

    summary, rows = run.summary, run.metrics()
    title = f"{summary['method']['name']} on {summary['dataset']}, {summary['model']['name']}"
    save_contrast_curves(run.curves_file, rows, title=title)
    last = summary["metrics"]["last"]
    told_apart = f"{last['train/contrast_accuracy']:.1%}"
    shown = (f"{last['train/loss']:.3f}", told_apart, f"{last['epoch']:.0f}", str(run.path))
    show_table(["loss", "views told apart", "epochs", "run"], [shown], title=title)
    console.print(f"curves: {run.curves_file}", soft_wrap=True)
    command = f"llp train --init-from {shlex.quote(str(run.path))} --freeze --method flmm"
    console.print(f"go on by: {command}", soft_wrap=True)
