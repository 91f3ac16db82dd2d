"""A finished run as a classifier of new files."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchllp.data.bag_table import bag_ids, read_bags
from torchllp.data.dataset import Instances
from torchllp.data.image_cache import Progress
from torchllp.data.own import labelled_instances
from torchllp.data.readers import FOLDER, ImageReader, TableReader
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

        ``label_column`` has their classes, if not the column that had those of the training instances.
        """
        self.run, known = run, run.description
        self.class_names: tuple[str, ...] = tuple(known["data"]["class_names"])
        self.offsets = torch.tensor(known["match_totals"]["offsets"], dtype=torch.float64)
        self.shape: tuple[int, ...] = tuple(known["model"]["input_shape"])
        self.own = run.config.own
        self.columns = columns_of(self.own)
        if label_column is not None:
            self.columns = replace(self.columns, label=label_column)
        self.model = run.load_model(weights, raw=raw).to(pick_device(device))
        if known["data"]["input"] == "uint8":
            self.views = ImageViews(mean=tuple(known["data"]["mean"]), std=tuple(known["data"]["std"]))
            self.reader = ImageReader(self.shape[-1], self.columns, images, progress)
        else:
            encoder = TableEncoder.from_json(read_json(run.data_file)["encoder"])
            self.views = TableViews(encoder.columns, encoder.is_number)
            self.reader = TableReader(encoder, self.columns, features)

    def read(self, source: Path) -> tuple[Table | None, Tensor]:
        """New instances, with the table they are in; an .npy file of images has none."""
        if isinstance(self.reader, ImageReader):
            if source.suffix == ".npy":
                return None, read_images(source, self.shape)
            table, inputs = self.reader.read(source)
            return table, self._coloured(inputs)
        return self.reader.read(source)

    def read_labelled(self, source: Path) -> Instances:
        """New instances with their labels."""
        found = labelled_instances(self.reader, source, self.columns.label, self.class_names)
        return found if isinstance(self.reader, TableReader) else replace(found, inputs=self._coloured(found.inputs))

    def _coloured(self, images: Tensor) -> Tensor:
        """Colour images, made grey for a model that was trained on grey ones."""
        if self.shape[0] == 3:
            return images
        weight = torch.tensor([0.299, 0.587, 0.114])  # of Pillow's conversion to L
        grey = [(part.float() * weight[:, None, None]).sum(1, keepdim=True) for part in images.split(1024)]
        return torch.cat(grey).round().to(torch.uint8)

    def notes(self, table: Table) -> list[str]:
        """What a user should know of how a new table was read."""
        return self.reader.notes(table) if isinstance(self.reader, TableReader) else []

    def log_p(self, inputs: Tensor) -> Tensor:
        """Log-probabilities of the classes, ``[N, C]``, on the CPU."""
        return predict(self.model, self.views, inputs).cpu()

    def bag_ids(self, table: Table) -> np.ndarray:
        """The bag of each row of a new table."""
        return bag_ids(table, self._bag_columns(table))

    def _bag_columns(self, table: Table) -> tuple[str, ...]:
        """A folder of images has its sub-folders as bags."""
        return self.columns.bag if FOLDER not in table.column_names else (FOLDER,)

    def id_columns(self, table: Table) -> list[str]:
        """The columns of a new table that say which instance a row is."""
        names = [*self.columns.id, *self._bag_columns(table), self.columns.path, "file"]
        return [name for name in dict.fromkeys(names) if name is not None and name in table.column_names]

    def respect_counts(
        self, log_p: Tensor, labels: np.ndarray, table: Table, source: Any
    ) -> tuple[np.ndarray, list[str]]:
        """Labels in which the rows of each bag of the bag table ``source`` have its counts, the likeliest such ones.

        Rows of other bags keep theirs. Second, how the bag table was understood.
        """
        bag_table = Table.of(source, "the bag table", self.columns.bag)
        bags, notes = read_bags(
            bag_table,
            self.bag_ids(table),
            self.columns.bag,
            class_columns=self.own.class_column,
            size_column=self.own.size_column,
            values=self.own.bag_values,
            normalize=self.own.normalize,
            unlabelled="keep",
            rows=table,
        )
        if set(bags.class_names) != set(self.class_names):
            raise LLPError(
                f"{bag_table.name}: its classes are {', '.join(bags.class_names)}, and the model's "
                f"{', '.join(self.class_names)}"
            )
        order = [bags.class_names.index(name) for name in self.class_names]
        labels, numbers = labels.copy(), log_p.double().numpy()
        for bag in np.flatnonzero(bags.is_labelled):
            rows, _ = bags.members_of(np.array([bag]))
            labels[rows] = assign_labels(numbers[rows], whole_counts(bags.proportions[bag, order], len(rows)))
        return labels, notes


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
