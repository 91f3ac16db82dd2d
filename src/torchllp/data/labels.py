"""The labels of a user's instances, and features that look like labels."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from torchllp.data.dataset import Instances
from torchllp.data.readers import ImageReader, TableReader
from torchllp.data.table import MISSING, Table
from torchllp.data.table_encoder import NO_VALUE, TableEncoder
from torchllp.errors import LLPError


def read_labels(table: Table, column: str, class_names: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
    """Class names (those of the column where none are given), and the labels, -1 where one is missing.

    Where the classes are "not x" and "x", because the bag table has a column of one class only, any other name is "not
    x", and 0 and 1 are understood.

    >>> read_labels(Table.of({"y": ["no", "yes", None]}), "y", None)
    (('no', 'yes'), tensor([ 0,  1, -1]))
    >>> read_labels(Table.of({"y": ["fine", "defect"]}), "y", ["not defect", "defect"])[1]
    tensor([0, 1])
    """
    texts = table.texts(column)
    missing = {None, *MISSING} - {*(class_names or ())}
    found = {text for text in texts if text not in missing}
    if class_names is None:
        class_names = sorted(found, key=_numbers_first)
    place = {name: c for c, name in enumerate(class_names)}
    others = found - {*class_names}
    if len(class_names) == 2 and class_names[0] == f"not {class_names[1]}":
        if found <= {"0", "1"}:
            place |= {"0": 0, "1": 1}
        elif len(others) == 1:
            place |= dict.fromkeys(others, 0)
    for row, text in enumerate(texts):
        if text not in missing and text not in place:
            raise LLPError(f"{table.place(row, column)}: {text!r} is none of the classes {', '.join(class_names)}")
    return tuple(class_names), torch.tensor([-1 if text in missing else place[text] for text in texts])


def _numbers_first(text: str) -> tuple[bool, float, str]:
    """A key by which 2 and 2.5 come before 10, and both before words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def labelled_instances(
    reader: TableReader | ImageReader, source: Any, class_names: Sequence[str]
) -> tuple[Instances, list[str]]:
    """Instances to evaluate on, and how they were read; in a folder of images the sub-folders are the classes."""
    found = reader.read(source)
    column = found.columns.label
    if column is None:
        raise LLPError(f"{found.table.name}: name the column with the classes by --label-column")
    found.table.need([column])
    instances = Instances(found.inputs, read_labels(found.table, column, class_names)[1])
    if not instances.is_labelled:
        raise LLPError(f"{found.table.name}: no instance has a label, so there is nothing to compare with")
    return instances, found.notes


def suspicious_features(table: Table, encoder: TableEncoder, class_names: Sequence[str]) -> Iterator[str]:
    """A warning for each feature that looks like the label itself, or like an id."""
    for column in encoder.column_names:
        kind = table.type_of(column)
        values = {*encoder.categories.get(column, ())} - {NO_VALUE}
        if pa.types.is_integer(kind):
            texts = table.texts(column)
            values = {text for text in texts if text is not None}
            if len(values) == table.num_rows > len(class_names):
                yield f"{table.name}: column {column!r} has another number in every row: is it an id? (--id-column)"
        if (values and values <= {*class_names}) or column in class_names:
            yield f"{table.name}: column {column!r} is learnt from and looks like the label (--label-column)"
