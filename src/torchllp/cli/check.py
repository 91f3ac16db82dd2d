"""`llp check`."""

from pathlib import Path
from typing import Annotated

from torchllp.cli.console import console, show_table
from torchllp.cli.flags import check_flags
from torchllp.cli.training import section
from torchllp.config import Config, DataConfig, OwnConfig


def check(
    *,
    seed: int = 0,
    figure: Path | None = None,
    data: Annotated[DataConfig | None, section("Data set and bags")] = None,
    own: Annotated[OwnConfig | None, section("Your own data")] = None,
) -> None:
    """Say what bags can teach, before any training.

    Parameters
    ----------
    seed
        Decides the bags.
    figure
        File (.png, .svg or .pdf) for a picture of the bags' proportions.
    """
    from torchllp.check import check_bags
    from torchllp.cli.progress import show_progress
    from torchllp.report.bags import save_bags
    from torchllp.report.figure import check_figure
    from torchllp.supervision import load_supervision

    if figure is not None:
        check_figure(figure)
    given = {
        name: part.model_dump(exclude_unset=True) for name, part in (("data", data), ("own", own)) if part is not None
    }
    with show_progress() as observer:
        settings = Config.layered(given, {"seed": seed})
        check_flags(settings, given)
        instances, bags, _, held_out = load_supervision(settings, progress=observer.on_images)
    console.print(f"{instances.name}: {bags!r}, of which {len(held_out or ())} are held out in training")
    learnt_from = () if instances.encoder is None else (instances.encoder.summary,)
    for note in (*instances.notes, *learnt_from):
        console.print(note, soft_wrap=True)
    findings = check_bags(bags, instances.train.inputs.numpy())
    rows = [("!" if f.level == "warning" else "", f.subject, f.value, f.meaning) for f in findings]
    show_table(["", "what", "value", "what it means"], rows)
    for warning in instances.warnings:
        console.print(f"! {warning}", soft_wrap=True)
    if figure is not None:
        save_bags(figure, bags, title=f"Proportions of {len(bags):,} bags of {bags.size_range} from {instances.name}")
        console.print(f"figure: {figure}", soft_wrap=True)
