"""`llp check`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchllp.cli.console import console, show_table
from torchllp.config import Config, DataConfig


def check(
    *,
    seed: int = 0,
    figure: Path | None = None,
    data: Annotated[DataConfig | None, Parameter(name="*")] = None,
) -> None:
    """Say what bags can teach, before any training.

    Parameters
    ----------
    seed
        Decides the bags.
    figure
        PNG file for a picture of the bags' proportions.
    """
    from torchllp.check import check_bags
    from torchllp.job import load_supervision
    from torchllp.report.bags import save_bags

    given = data.model_dump(exclude_unset=True) if data is not None else {}
    instances, bags, _, held_out = load_supervision(Config.layered({"data": given, "seed": seed}))
    console.print(f"{instances.name}: {bags!r}, of which {len(held_out or ())} are held out in training", markup=False)
    findings = check_bags(bags, instances.train.inputs.numpy())
    rows = [("!" if f.level == "warning" else "", f.subject, f.value, f.meaning) for f in findings]
    show_table(["", "what", "value", "what it means"], rows)
    for warning in instances.warnings:
        console.print(f"! {warning}", markup=False, soft_wrap=True)
    if figure is not None:
        save_bags(figure, bags, title=f"Proportions of {len(bags):,} bags of {bags.size_range} from {instances.name}")
        console.print(f"figure: {figure}", markup=False, soft_wrap=True)
