"""What is exported: a module from raw instances to probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.engine.evaluate import predict
from torchllp.run import FORMAT_VERSION
from torchllp.views.image import ImageViews
from torchllp.views.table import TableViews
from torchllp.views.views import Views

Inputs = Mapping[str, np.ndarray]
"""Raw instances by the names of a file's inputs."""


class RawClassifier(nn.Module, ABC):
    """A trained model with all that comes before and after it.

    ``temperature`` calibrates it, see :class:`~torchllp.calibration.Calibration`; ``made_of`` says what
    :func:`~torchllp.models.create_model` makes the model of; None if it is a module of the user's own.
    """

    views: Views

    def __init__(
        self, model: nn.Module, class_names: Sequence[str], temperature: float, made_of: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self.model = deepcopy(model).cpu().to(memory_format=torch.contiguous_format)  # as files hold it
        self.class_names = tuple(class_names)
        self.temperature = temperature
        self.made_of = made_of
        self.eval()

    def probabilities(self, x: Tensor) -> Tensor:
        """The probabilities ``[N, C]`` of instances that are ready for the model."""
        return (self.model(x).float() / self.temperature).softmax(1)

    @torch.no_grad()
    def predict_proba(self, instances: Any) -> np.ndarray:
        """The probabilities ``[N, C]`` of raw instances: uint8 images, or a table, a frame or the file of one."""
        return self(**self.tensors(self.inputs(instances))).numpy()

    def expected(self, instances: Any) -> np.ndarray:
        """The same by the code that trains and predicts, to verify an export by."""
        log_p = predict(self.model, self.views, self.encoded(instances))
        return (log_p / self.temperature).softmax(1).numpy()

    def describe(self, *, texts: bool) -> dict[str, Any]:
        """All that is to be known of a file: what it takes and gives, and how that is done.

        ``texts`` says whether categories go in as texts, or as codes.
        """
        return {
            "format_version": FORMAT_VERSION,
            "torchllp": version("torchllp"),
            "class_names": list(self.class_names),
            "inputs": self.describe_inputs(texts=texts),
            "outputs": {"probabilities": {"dtype": "float32", "shape": ["batch", len(self.class_names)]}},
            "model": self.made_of,
            "temperature": self.temperature,
            **self.describe_preparation(),
        }

    @abstractmethod
    def inputs(self, instances: Any) -> Inputs:
        """Raw instances by the names of the inputs; categories are texts."""

    @abstractmethod
    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        """These as :meth:`forward` takes them."""

    @abstractmethod
    def encoded(self, instances: Any) -> Tensor:
        """Raw instances as the library has them in memory."""

    @abstractmethod
    def made_up(self, number: int) -> Any:
        """Instances that the model can be tried on, with all that may be missing or unknown among them."""

    @abstractmethod
    def describe_inputs(self, *, texts: bool) -> dict[str, Any]: ...

    @abstractmethod
    def describe_preparation(self) -> dict[str, Any]: ...


class ImageClassifier(RawClassifier):
    """From uint8 images ``[N, C, H, W]``, which are normalised here.

    >>> whole = ImageClassifier(nn.Flatten(), ["a", "b"], (1, 1, 2), mean=(0.0,), std=(1.0,))
    >>> whole(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[0.2689, 0.7311]])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        class_names: Sequence[str],
        input_shape: Sequence[int],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        temperature: float = 1.0,
        made_of: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, class_names, temperature, made_of)
        self.input_shape = tuple(input_shape)
        self.views = ImageViews(mean=tuple(mean), std=tuple(std))
        self.normalisation = {"mean": list(mean), "std": list(std)}
        self.register_buffer("mean", 255 * torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", 255 * torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return self.probabilities((images.float() - self.mean) / self.std)

    def inputs(self, instances: Any) -> Inputs:
        return {"images": np.asarray(instances)}

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        return {"images": torch.from_numpy(inputs["images"])}

    def encoded(self, instances: Any) -> Tensor:
        return torch.as_tensor(instances)

    def made_up(self, number: int) -> Any:
        return np.random.default_rng(0).integers(256, size=(number, *self.input_shape), dtype=np.uint8)

    def describe_inputs(self, *, texts: bool) -> dict[str, Any]:
        meaning = "levels from 0 to 255, channels first"
        return {"images": {"dtype": "uint8", "shape": ["batch", *self.input_shape], "meaning": meaning}}

    def describe_preparation(self) -> dict[str, Any]:
        return self.normalisation


class RowClassifier(RawClassifier):
    """From rows of a table: numbers as they are, NaN where one is missing, and categories.

    ``numbers`` are float64 ``[N, numbers]``: large ones that differ by little, such as dates, need the digits.
    ``codes`` are int64 ``[N, columns]``, the place of each category in the list of its column, -1 for any other one.

    >>> table = {"width": [1.0, 3.0, None], "colour": ["red", "blue", "green"]}
    >>> encoder = TableEncoder.fit(Table.of(table), ["width", "colour"])
    >>> whole = RowClassifier(nn.Identity(), ["a", "b", "c", "d"], encoder)
    >>> {name: values.tolist() for name, values in whole.inputs(table).items()}
    {'numbers': [[1.0], [3.0], [nan]], 'categories': [['red'], ['blue'], ['green']]}
    >>> whole.tensors(whole.inputs(table))["codes"].flatten()
    tensor([2, 0, 1])
    >>> whole.predict_proba(table).argmax(1)
    array([3, 0, 2])
    """

    mean: Tensor
    scale: Tensor
    column_of: Tensor
    code_of: Tensor

    def __init__(
        self,
        model: nn.Module,
        class_names: Sequence[str],
        encoder: TableEncoder,
        *,
        temperature: float = 1.0,
        made_of: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, class_names, temperature, made_of)
        self.encoder = encoder
        self.views = TableViews(encoder.columns, encoder.is_number)
        widths = [len(names) for names in encoder.categories.values()]
        self.register_buffer("mean", torch.from_numpy(encoder.mean))
        self.register_buffer("scale", torch.from_numpy(encoder.scale))
        self.register_buffer("column_of", torch.from_numpy(np.arange(len(widths)).repeat(widths)))
        self.register_buffer("code_of", torch.tensor([code for width in widths for code in range(width)]))

    def forward(self, numbers: Tensor | None = None, codes: Tensor | None = None) -> Tensor:
        parts = []
        if numbers is not None:
            x = (numbers - self.mean) / self.scale
            parts.append(torch.where(x.isnan(), 0.0, x).float())
        if codes is not None:
            parts.append((codes.index_select(1, self.column_of) == self.code_of).float())
        return self.probabilities(torch.cat(parts, 1))

    def inputs(self, instances: Any) -> Inputs:
        numbers, texts = self.encoder.raw(self._table(instances))
        return {name: x for name, x in (("numbers", numbers), ("categories", texts)) if x.shape[1]}

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        tensors = {}
        if "numbers" in inputs:
            tensors["numbers"] = torch.from_numpy(inputs["numbers"])
        if "categories" in inputs:
            places = [{name: code for code, name in enumerate(names)} for names in self.encoder.categories.values()]
            codes = [
                [place.get(text, -1) for place, text in zip(places, row, strict=True)] for row in inputs["categories"]
            ]
            tensors["codes"] = torch.tensor(codes)
        return tensors

    def encoded(self, instances: Any) -> Tensor:
        return self.encoder.transform(self._table(instances))

    def made_up(self, number: int) -> Any:
        generator, encoder = np.random.default_rng(0), self.encoder
        values = encoder.mean + encoder.scale * generator.normal(size=(number, len(encoder.mean)))
        rows: dict[str, np.ndarray] = {}
        start = 0
        for column, width in encoder.numbers.items():
            rows[column] = values[:, start : (start := start + width)]
            if width == 1:  # precomputed features are never missing
                rows[column] = rows[column][:, 0]
                rows[column][-1] = np.nan
        for column, names in encoder.categories.items():
            unknown = max(names, key=len) + "!"
            rows[column] = generator.choice(np.array([*names, unknown], dtype=object), number)
        return rows

    def describe_inputs(self, *, texts: bool) -> dict[str, Any]:
        numbers, categories = self.encoder.numbers, list(self.encoder.categories)
        described: dict[str, Any] = {}
        if numbers:
            described["numbers"] = {
                "dtype": "float64",
                "shape": ["batch", len(self.encoder.mean)],
                "columns": dict(numbers),
                "meaning": "NaN where missing; dates are seconds since 1970, true and false 1 and 0",
            }
        if categories:
            described["categories" if texts else "codes"] = {
                "dtype": "string" if texts else "int64",
                "shape": ["batch", len(categories)],
                "columns": categories,
                "meaning": "texts without blanks around them, empty where missing"
                if texts
                else "the place of a text in its column's list of categories, -1 if it is not there",
            }
        return described

    def describe_preparation(self) -> dict[str, Any]:
        return {"encoder": self.encoder.to_json()}

    def _table(self, instances: Any) -> Table:
        return Table.of(instances, "the instances", self.encoder.categories)


def raw_classifier(
    model: nn.Module,
    class_names: Sequence[str],
    input_shape: Sequence[int],
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    encoder: TableEncoder | None = None,
    temperature: float = 1.0,
    made_of: Mapping[str, Any] | None = None,
) -> RawClassifier:
    """The classifier of images, or with an ``encoder`` of the rows of a table."""
    if encoder is not None:
        return RowClassifier(model, class_names, encoder, temperature=temperature, made_of=made_of)
    return ImageClassifier(
        model, class_names, input_shape, mean=mean, std=std, temperature=temperature, made_of=made_of
    )
