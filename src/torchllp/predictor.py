"""A finished run as a classifier of new files."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.calibration import Calibration
from torchllp.data.bag_table import bag_ids, read_bags
from torchllp.data.dataset import Instances
from torchllp.data.image_cache import Progress
from torchllp.data.labels import labelled_instances
from torchllp.data.readers import Columns, Found, ImageReader, TableReader
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.engine.evaluate import predict
from torchllp.engine.precision import pick_device
from torchllp.errors import LLPError
from torchllp.functional.assignment import assign_labels, whole_counts
from torchllp.run import Run, read_json
from torchllp.supervision import columns_of
from torchllp.views.image import ImageViews
from torchllp.views.table import TableViews


class Predictor:
    """The model of a run, what reads instances for it, and what its classes are called."""

    def __init__(
        self,
        run: Run,
        *,
        weights: Literal["chosen", "last"] | None = None,
        raw: bool = False,
        device: str = "auto",
        images: Path | None = None,
        features: Path | None = None,
        label_column: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``images`` is the folder that the paths in new tables start from, ``features`` a file with their features.

        Without ``images`` it is the folder that the run had, or else that of the table.

        ``label_column`` has their classes, if not the column that had those of the training instances.
        """
        self.run, known = run, run.description
        self.class_names: tuple[str, ...] = tuple(known["data"]["class_names"])
        if not self.class_names:
            raise LLPError(f"{run.path}: was pre-trained and knows no classes: train on it by llp train --init-from")
        self.calibration = Calibration.from_json(known["calibration"], len(self.class_names))
        self.offsets = torch.tensor(known["match_totals"]["offsets"], dtype=torch.float64)
        self.shape: tuple[int, ...] = tuple(known["model"]["input_shape"])
        self.own = run.config.own
        self.columns = columns_of(self.own)
        if label_column is not None:
            self.columns = replace(self.columns, label=label_column)
        self.model = run.load_model(weights, raw=raw).to(pick_device(device))
        if known["data"]["input"] == "uint8":
            self.views = ImageViews(mean=tuple(known["data"]["mean"]), std=tuple(known["data"]["std"]))
            root = images or (Path(self.own.images) if self.own.images else None)
            self.reader = ImageReader(self.shape[-1], self.columns, root, progress)
        else:
            encoder = TableEncoder.from_json(read_json(run.data_file)["encoder"])
            self.views = TableViews(encoder.columns, encoder.is_number)
            self.reader = TableReader(encoder, self.columns, features)

    def read(self, source: Path) -> Found:
        """New instances; those of an .npy file of images have no columns."""
        if isinstance(self.reader, TableReader):
            return self.reader.read(source)
        if source.suffix == ".npy":
            return without_columns(read_images(source, self.shape), str(source))
        found = self._reader_of(source).read(source)
        return found._replace(inputs=self._coloured(found.inputs))

    def read_labelled(self, source: Path) -> tuple[Instances, list[str]]:
        """New instances with their labels, and how they were read."""
        if isinstance(self.reader, TableReader):
            return labelled_instances(self.reader, source, self.class_names)
        reader = replace(self._reader_of(source), need_groups=True)
        found, notes = labelled_instances(reader, source, self.class_names)
        return replace(found, inputs=self._coloured(found.inputs)), notes

    def _reader_of(self, source: Path) -> ImageReader:
        """A model of images takes folders as well as tables, whatever it was trained on."""
        assert isinstance(self.reader, ImageReader)
        return replace(self.reader, columns=Columns()) if source.is_dir() else self.reader

    def _coloured(self, images: Tensor) -> Tensor:
        """Colour images, made grey for a model that was trained on grey ones."""
        if self.shape[0] == 3:
            return images
        weight = torch.tensor([0.299, 0.587, 0.114])  # of Pillow's conversion to L
        grey = [(part.float() * weight[:, None, None]).sum(1, keepdim=True) for part in images.split(1024)]
        return torch.cat(grey).round().to(torch.uint8)

    def log_p(self, inputs: Tensor) -> Tensor:
        """Calibrated log-probabilities of the classes, ``[N, C]``, on the CPU."""
        return self.calibration(self.uncalibrated_log_p(inputs))

    def uncalibrated_log_p(self, inputs: Tensor) -> Tensor:
        """Log-probabilities as the model gives them."""
        return predict(self.model, self.views, inputs).cpu()

    def respect_counts(
        self, log_p: Tensor, labels: np.ndarray, found: Found, source: Any, **bag_options: Any
    ) -> tuple[np.ndarray, list[str]]:
        """Labels in which the rows of each bag of the bag table ``source`` have its counts, the likeliest such ones.

        Rows of other bags keep theirs. Second, how the bag table was understood; ``bag_options`` are those of
        :func:`~torchllp.data.bag_table.read_bags`.
        """
        columns = self.columns.bag
        bag_table = Table.of(source, "the bag table", columns)
        named = [name for name in self.class_names if name in bag_table.column_names]
        if not named:
            raise LLPError(f"{bag_table.name}: none of the classes {', '.join(self.class_names)} has a column")
        if len(named) < len(self.class_names) and len(self.class_names) != 2:
            missing = next(name for name in self.class_names if name not in named)
            raise LLPError(f"{bag_table.name}: class {missing!r} has no column")
        bags, notes = read_bags(
            bag_table,
            bag_ids(found.table, found.columns.bag),
            columns,
            class_columns=named,
            size_column=self.own.size_column,
            unlabelled="keep",
            need_rows=False,
            rows=found.table,
            **bag_options,
        )
        bags.need_all_observed(bag_table.name)
        # of two classes one may be said alone: then the first of the bags' is "not" it
        order = [0, 1] if named == [self.class_names[1]] else [1, 0] if len(named) == 1 else range(len(named))
        return labels_in_bags(log_p.double().numpy(), labels, bags, bags.proportions[:, list(order)]), notes


def labels_in_bags(log_p: np.ndarray, labels: np.ndarray, bags: Bags, proportions: np.ndarray) -> np.ndarray:
    """The likeliest labels ``[N]`` in which the rows of each labelled bag have its counts; others keep ``labels``.

    ``proportions [B, C]`` are those of the bags, in the order of the classes of ``log_p [N, C]``.
    """
    labels = labels.copy()
    for bag in np.flatnonzero(bags.is_labelled):
        rows, _ = bags.members_of(np.array([bag]))
        labels[rows] = assign_labels(log_p[rows], whole_counts(proportions[bag], len(rows)))
    return labels


def without_columns(inputs: Tensor, name: str) -> Found:
    """Instances that are in no table."""
    return Found(Table.of({"row": np.arange(len(inputs))}, name), inputs, Columns(bag=()), [])


def read_images(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Images of a .npy file in the shape that the model was trained on."""
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
