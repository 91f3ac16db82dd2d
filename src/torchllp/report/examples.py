"""Single training instances to look at: those whose pseudo-labels are trusted most, and least."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from torchllp.data.dataset import Dataset
from torchllp.data.table_encoder import NO_VALUE, TableEncoder
from torchllp.report.findings import Findings, InBags

NUM_EXAMPLES = 12
NUM_COLUMNS = 5
LARGEST_SIDE = 128
"""Of a picture in pixels; larger ones are made smaller."""


@dataclass(frozen=True)
class Example:
    """A training instance with what is said of it."""

    row: int
    bag: str
    label: str
    """The class that is predicted."""
    trust: float
    true: str | None
    """The true class, where it is known."""


def most_and_least_trusted(
    findings: Findings, predicted: InBags, number: int = NUM_EXAMPLES
) -> tuple[list[Example], list[Example], str]:
    """The most and the least trusted of these predictions, and what trust is in words."""
    trust, words = findings.trust(predicted)
    labels, names = findings.data.train.labels, findings.class_names
    predicted_classes = predicted.log_p.argmax(1).tolist()

    def example(place: int) -> Example:
        row = int(predicted.rows[place])
        true = -1 if labels is None else int(labels[row])
        bag = str(predicted.bags.bag_ids[predicted.bag_index[place]])
        known = None if true < 0 else names[true]
        return Example(row, bag, names[predicted_classes[place]], float(trust[place]), known)

    order = np.argsort(-trust, kind="stable").tolist()
    number = min(number, len(order) // 2)  # none is among both
    return [example(i) for i in order[:number]], [example(i) for i in order[::-1][:number]], words


def picture_uri(image: Tensor) -> str:
    """A uint8 image ``[C, H, W]`` as a PNG in a data URI."""
    pixels = image.cpu().numpy()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def telling_columns(data: Dataset, predicted: InBags, number: int = NUM_COLUMNS) -> list[int]:
    """The columns of a table whose mean differs most between the predicted classes, in their order."""
    rows = data.train.inputs[predicted.rows].double().numpy()
    p = predicted.log_p.exp().double().numpy()
    weight = p.sum(0)
    means = p.T @ rows / weight[:, None].clip(min=1e-9)  # [C, D]
    overall = np.average(means, axis=0, weights=weight)
    between = np.average((means - overall) ** 2, axis=0, weights=weight) / rows.var(0).clip(min=1e-9)
    columns = np.arange(rows.shape[1]) if data.encoder is None else np.array(data.encoder.columns)
    of_column = np.zeros(columns.max() + 1)
    np.maximum.at(of_column, columns, between)
    return sorted(np.argsort(-of_column, kind="stable")[:number].tolist())


def column_values(encoder: TableEncoder | None, inputs: np.ndarray, columns: Sequence[int]) -> dict[str, list[str]]:
    """What these columns of encoded rows ``[N, D]`` were in their table, column by column."""
    if encoder is None:
        return {f"feature {c}": [f"{value:.4g}" for value in inputs[:, c]] for c in columns}
    names = [
        name if width == 1 else f"{name}[{i}]" for name, width in encoder.numbers.items() for i in range(width)
    ] + list(encoder.categories)
    categories = list(encoder.categories.values())
    owner, values = np.array(encoder.columns), {}
    for c in columns:
        features = inputs[:, owner == c]
        if c < len(encoder.mean):
            values[names[c]] = [f"{v:.4g}" for v in features[:, 0] * encoder.scale[c] + encoder.mean[c]]
        else:
            kinds = categories[c - len(encoder.mean)]
            shown = [kinds[row.argmax()] if row.any() else "(another)" for row in features]
            values[names[c]] = ["(missing)" if kind == NO_VALUE else kind for kind in shown]
    return values
