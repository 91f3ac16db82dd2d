"""The user's own instances (a table, precomputed features, images) with the table of their bags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchllp.bags import Bags
from torchllp.data.bag_table import Values, bag_ids, read_bags
from torchllp.data.dataset import Dataset, Instances
from torchllp.data.image_cache import Progress
from torchllp.data.readers import FILE, FOLDER, Columns, ImageReader, TableReader, features_of
from torchllp.data.table import Table
from torchllp.data.table_encoder import NO_VALUE, TableEncoder
from torchllp.errors import LLPError


@dataclass(frozen=True, eq=False)
class OwnData:
    """What the user's files became."""

    data: Dataset
    bags: Bags | None
    """Those of the bag table, where there is one."""
    bag_ids: np.ndarray | None
    """The value of the bag column of each instance; None without such a column."""


def load_table(
    instances: Any,
    bags: Any,
    *,
    bag_column: str | Sequence[str] = "bag",
    label_column: str | None = None,
    id_column: str | Sequence[str] = (),
    feature_column: str | Sequence[str] = (),
    categorical_column: str | Sequence[str] = (),
    features: Any = None,
    test: Any = None,
    class_column: str | Sequence[str] = (),
    size_column: str | None = None,
    bag_values: Values | None = None,
    normalize: bool = False,
    unlabelled: Literal["keep", "drop"] | None = None,
) -> tuple[Dataset, Bags]:
    """A data set and its bags from a table of instances and a table of bags.

    Each is a CSV or Parquet file or a folder of them, a pandas, polars or Arrow frame, or a mapping of columns. The
    other arguments are those of ``llp train``.

    >>> rows = {"bag": ["a", "a", "b"], "width": [1.0, 2.0, 3.0], "colour": ["red", "blue", "red"]}
    >>> data, bags = load_table(rows, {"bag": ["a", "b"], "good": [2, 0], "bad": [0, 1]})
    >>> data.train.inputs.shape, data.class_names
    (torch.Size([3, 3]), ('good', 'bad'))
    >>> bags
    Bags(2 bags of 1 to 2 instances, 3 instances, 2 classes)
    """
    own = read_own(
        Columns(
            bag=_several(bag_column),
            label=label_column,
            id=_several(id_column),
            feature=_several(feature_column),
            categorical=_several(categorical_column),
        ),
        instances=instances,
        features=features,
        test=test,
        bags=bags,
        class_columns=_several(class_column),
        size_column=size_column,
        values=bag_values,
        normalize=normalize,
        unlabelled=unlabelled,
    )
    assert own.bags is not None  # there is a bag table
    return own.data, own.bags


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def read_own(
    columns: Columns,
    *,
    instances: Any = None,
    features: Any = None,
    images: str | None = None,
    test: Any = None,
    bags: Any = None,
    image_size: int = 64,
    flip: bool = False,
    progress: Progress | None = None,
    **bag_options: Any,
) -> OwnData:
    """All that the user's files say. ``bags`` is a bag table, or ready bags. ``bag_options``: see :func:`read_bags`."""
    source = images if instances is None else instances
    name = Path(source).stem if isinstance(source, str | Path) else "table"
    if columns.label in columns.feature:
        raise LLPError(f"{columns.label!r} is a --feature-column and the --label-column: labels are never learnt from")
    if images is not None:
        if instances is None and (columns.label or columns.path):
            raise LLPError("--label-column and --path-column are columns of a table: give it by --instances")
        if instances is not None and columns.path is None:
            raise LLPError(f"{instances}: name the column with the image files by --path-column")
        reader = ImageReader(image_size, columns, Path(images), progress, need_groups=True)
        table, inputs = reader.read(source)
    else:
        table = Table.of(instances, "the instances", columns.text)
        of_features = features_of(table, features, columns.text)
        names = columns.to_learn_from(of_features)
        encoder, inputs = TableEncoder.fit_transform(of_features, names, columns.categorical)
        reader = TableReader(encoder, columns)
    has_labels = columns.label in table.column_names
    table.need(columns.id)
    if columns.label is not None and test is None:
        table.need([columns.label])

    bag_columns = (FOLDER,) if instances is None else columns.bag
    has_bags = all(column in table.column_names for column in bag_columns)
    is_named = columns.bag != Columns.bag
    has_table = bags is not None and not isinstance(bags, Bags)
    ids = bag_ids(table, bag_columns) if has_table or has_bags or is_named else None
    labels = class_names = None
    notes: list[str] = []
    found = bags if isinstance(bags, Bags) else None
    if found is not None:
        class_names = found.class_names
    elif has_table:
        assert ids is not None
        bag_table = Table.of(bags, "the bag table", columns.bag)
        found, notes = read_bags(bag_table, ids, columns.bag, rows=table, **bag_options)
        class_names = found.class_names
        for c in np.flatnonzero(found.class_shares == 0)[:1]:
            raise LLPError(
                f"{bag_table.name}: class {class_names[c]!r} is 0 in every bag, so nothing can be learnt of it: leave "
                "its column out"
            )
    if columns.label is not None and has_labels:  # which the training rows need not have
        class_names, labels = read_labels(table, columns.label, class_names)
    if class_names is None:
        raise LLPError(
            f"{table.name}: nothing is known of the classes: give the table of the bags by --bags, or by "
            "--label-column a column with the classes to make bags from"
        )
    train = Instances(inputs, labels)
    if isinstance(reader, ImageReader):
        data = Dataset.from_images(name, train, class_names=class_names, flip=flip)
    else:
        encoder = reader.encoder
        warnings = (*encoder.warnings, *_leaks(table, encoder, class_names))
        data = Dataset(name=name, train=train, test=None, class_names=class_names, encoder=encoder, warnings=warnings)
    if test is not None:
        data = replace(data, test=labelled_instances(reader, test, columns.label, class_names))
    elif labels is not None:
        data = replace(data, test=train, tests_on="training instances")
    return OwnData(replace(data, notes=tuple(notes)), found, ids)


def _leaks(table: Table, encoder: TableEncoder, class_names: Sequence[str]) -> Iterator[str]:
    """A warning for each feature that looks like the label itself."""
    for column, names in encoder.categories.items():
        if {*names} - {NO_VALUE} == {*class_names}:
            yield (
                f"{table.name}: column {column!r} has the names of the classes as its values, and is learnt from: if "
                "it is the label, say so by --label-column"
            )


def labelled_instances(
    reader: TableReader | ImageReader, source: Any, label_column: str | None, class_names: Sequence[str]
) -> Instances:
    """Instances to evaluate on; those of a folder of images have the name of their sub-folder as label."""
    table, inputs = reader.read(source)
    column = label_column or (FOLDER if table.column_names == [FILE, FOLDER] else None)
    if column is None:
        raise LLPError(f"{table.name}: name the column with the classes by --label-column")
    table.need([column])
    return Instances(inputs, read_labels(table, column, class_names)[1])


def read_labels(table: Table, column: str, class_names: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
    """Class names (those of the column where none are given), and the labels, -1 where one is missing.

    >>> read_labels(Table.of({"y": ["no", "yes", None]}), "y", None)
    (('no', 'yes'), tensor([ 0,  1, -1]))
    """
    texts = table.texts(column)
    if class_names is None:
        found = {text for text in texts if text is not None}
        class_names = sorted(found, key=lambda text: (0, int(text), text) if text.isdecimal() else (1, 0, text))
    place = {name: c for c, name in enumerate(class_names)}
    for row, text in enumerate(texts):
        if text is not None and text not in place:
            raise LLPError(f"{table.place(row, column)}: {text!r} is none of the classes {', '.join(class_names)}")
    return tuple(class_names), torch.tensor([-1 if text is None else place[text] for text in texts])
