"""`llp export`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from torchllp.cli.console import aside, console
from torchllp.cli.training import Flag


def export(
    run: Path,
    *,
    to: Literal["onnx", "torch-export", "safetensors"] = "onnx",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    overwrite: Annotated[bool, Flag] = False,
    weights: Literal["chosen", "last"] | None = None,
    raw: Annotated[bool, Flag] = False,
) -> None:
    """Write a run's classifier to a file that runs without torchllp, once it has given the same probabilities.

    It takes raw instances and gives the probabilities of the classes: images are normalised in it, the numbers of a
    table standardised and its categories encoded.

    Parameters
    ----------
    run
        Directory of a finished run.
    to
        onnx: one file for onnxruntime and others, in any language. torch-export: a .pt2 file for PyTorch alone.
        safetensors: a folder with the weights and all that is needed to build the model again, for
        torchllp.load_exported.
    output
        File to write, or folder for safetensors. Default: model.onnx, model.pt2 or exported in the run.
    overwrite
        Replace an export that is there already.
    weights
        Epoch whose weights are used. Default: the chosen one, the last where none was chosen.
    raw
        Use the weights as optimised, not their moving average.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.export import FORMATS, export_run
    from torchllp.run import Run

    opened = Run.open(run)
    path = output or opened.export_paths[to]
    with show_progress(aside) as observer:
        exported = export_run(
            opened, path, to, weights=weights, raw=raw, overwrite=overwrite, progress=observer.on_images
        )
    for note in exported.notes:
        aside.print(note, soft_wrap=True)
    about = exported.about
    lines = [f"{path}: {to}"]
    for name, one in about["inputs"].items():
        columns = f" of {_several(one['columns'])}" if "columns" in one else ""
        lines.append(f"takes {_tensor(name, one)}{columns}: {one['meaning']}")
    for name, one in about["outputs"].items():
        lines.append(f"gives {_tensor(name, one)} of {_several(about['class_names'])}")
    if exported.difference is None:
        lines.append("not verified, because onnxruntime is not installed: say pip install 'torchllp[onnx]'")
    else:
        by = FORMATS[to].runs_by
        lines.append(f"verified by {by}: the largest difference of a probability is {exported.difference:.1e}")
    for line in lines:
        console.print(line, soft_wrap=True)


def _tensor(name: str, about: dict[str, Any]) -> str:
    return f"{name}, {about['dtype']} [{', '.join(map(str, about['shape']))}]"


def _several(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
