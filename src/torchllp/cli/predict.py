"""`llp predict`."""

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from torchllp.errors import LLPError

if TYPE_CHECKING:
    from torch import Tensor


def predict(
    run: Path,
    images: Path | None = None,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    weights: Literal["chosen", "last"] | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    data_dir: Path | None = None,
    device: str = "auto",
) -> None:
    """Classify instances with a run's classifier: one CSV row an instance with its class and all probabilities.

    Parameters
    ----------
    run
        Directory of a finished run.
    images
        .npy file of uint8 images, [N, height, width] or [N, channels, height, width]. Default: the test images of the
        run's data set.
    output
        CSV file to write. Default: standard output.
    weights
        Epoch whose weights are used. Default: the chosen one, the last where none was chosen.
    raw
        Use the weights as optimised, not their moving average.
    data_dir
        Directory of the data sets' files, if not where the run had them.
    device
        auto (a GPU if there is one), cpu, cuda, cuda:1, mps.
    """
    from torchllp.engine.evaluate import predict as predict_instances
    from torchllp.engine.precision import pick_device
    from torchllp.files import write_atomically
    from torchllp.job import load_data
    from torchllp.run import Run
    from torchllp.views.image import ImageViews

    opened = Run.open(run)
    known = opened.description
    if images is not None:
        inputs = _read_images(images, tuple(known["model"]["input_shape"]))
    else:
        test = load_data(opened.config_with(data_dir).data).test
        if test is None:
            raise LLPError(f"{known['data']['dataset']} has no test instances: name a file to classify")
        inputs = test.inputs
    where = pick_device(device)
    views = ImageViews(mean=tuple(known["data"]["mean"]), std=tuple(known["data"]["std"]))
    model = opened.load_model(weights, raw=raw).to(where)
    probabilities = predict_instances(model, views, inputs.to(where)).exp()
    class_names = known["data"]["class_names"]

    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "class", *(f"p({name})" for name in class_names)])
    for row, (best, values) in enumerate(zip(probabilities.argmax(1).tolist(), probabilities.tolist(), strict=True)):
        table.writerow([row, class_names[best], *(f"{value:.6g}" for value in values)])
    if output is None:
        sys.stdout.write(text.getvalue())
    else:
        write_atomically(output, text.getvalue().encode())


def _read_images(path: Path, shape: tuple[int, ...]) -> "Tensor":
    """Images of a .npy file in the shape that the model was trained on."""
    import numpy as np
    import torch

    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise LLPError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise LLPError(f"{path}: not a .npy file of numbers ({error})") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        raise LLPError(f"{path}: images are uint8 values, not {getattr(array, 'dtype', 'an archive')}")
    if array.ndim == 3 and shape[0] == 1:
        array = array[:, None]
    if array.shape[1:] != shape:
        raise LLPError(f"{path}: the model was trained on images of shape {shape}, not {array.shape[1:]}")
    return torch.from_numpy(array)
