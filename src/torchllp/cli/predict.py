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
    """
    from torchllp.data import load_dataset
    from torchllp.engine.checkpoint import write_atomically
    from torchllp.engine.evaluate import predict as predict_instances
    from torchllp.engine.precision import pick_device
    from torchllp.engine.train import image_views
    from torchllp.run import Run

    opened = Run.open(run)
    device = pick_device(opened.config.compute.device)
    model = opened.load_model(weights, raw=raw).to(device)
    data = load_dataset(opened.config.data.dataset)
    if images is not None:
        inputs = _read_images(images, data.input_shape)
    elif data.test is not None:
        inputs = data.test.inputs
    else:
        raise LLPError(f"{data.name} has no test instances: name a file to classify")
    probabilities = predict_instances(model, image_views(data, opened.config.recipe), inputs.to(device)).exp()

    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "class", *(f"p({name})" for name in data.class_names)])
    for row, (best, values) in enumerate(zip(probabilities.argmax(1).tolist(), probabilities.tolist(), strict=True)):
        table.writerow([row, data.class_names[best], *(f"{value:.6g}" for value in values)])
    if output is None:
        sys.stdout.write(text.getvalue())
    else:
        try:
            write_atomically(output, text.getvalue().encode())
        except OSError as error:
            raise LLPError(f"{output}: cannot be written ({error.strerror})") from error


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
