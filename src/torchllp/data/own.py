"""The user's own instances (a table, precomputed features, images) with the table of their bags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from torchllp.bags import Bags
from torchllp.data.bag_table import Values, bag_ids, read_bags
from torchllp.data.dataset import Dataset, Instances
from torchllp.data.image_cache import Progress
from torchllp.data.labels import labelled_instances, read_labels, suspicious_features
from torchllp.data.readers import Columns, Found, ImageReader, TableReader, features_of
from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder
from torchllp.errors import LLPError
from torchllp.noise import NoiseKind


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
    bag_noise: NoiseKind | None = None,
    bag_noise_scale: float | None = None,
    bag_noise_column: str | None = None,
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
        noise=bag_noise,
        noise_scale=bag_noise_scale,
        noise_column=bag_noise_column,
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
    need_classes: bool = True,
    **bag_options: Any,
) -> OwnData:
    """All that the user's files say. ``bags`` is a bag table, or ready bags. ``bag_options``: see :func:`read_bags`.

    With ``need_classes`` False the instances may be all that there is.
    """
    if columns.label is not None and columns.label in columns.feature:
        raise LLPError(f"{columns.label!r} is a --feature-column and the --label-column: labels are never learnt from")
    reader: TableReader | ImageReader
    of_features = None
    if images is not None or columns.path is not None:
        if instances is None and (columns.label or columns.path):
            raise LLPError("--label-column and --path-column are columns of a table: give it by --instances")
        if instances is not None and columns.path is None:
            raise LLPError(f"{instances}: name the column with the image files by --path-column")
        root = None if images is None else Path(images)
        reader = ImageReader(image_size, columns, root, progress, need_groups=need_classes)
        found = reader.read(images if instances is None else instances)
    else:
        table = Table.of(instances, "the instances", columns.text)
        of_features = features_of(table, features, columns.text)
        names = columns.to_learn_from(of_features)
        encoder, inputs = TableEncoder.fit_transform(of_features, names, columns.categorical)
        reader, found = TableReader(encoder, columns), Found(table, inputs, columns, [])
    table = found.table
    table.need(columns.id)
    if columns.label is not None and test is None:  # with test instances, the others need no labels
        table.need([columns.label])

    ids, ready, labels, notes = None, bags, None, []
    has_column = all(column in table.column_names for column in found.columns.bag)
    if has_column or columns.bag != Columns.bag:
        ids = bag_ids(table, found.columns.bag)
    if bags is not None and not isinstance(bags, Bags):
        ids = bag_ids(table, found.columns.bag) if ids is None else ids
        ready, notes = _from_table(Table.of(bags, "the bag table", columns.bag), ids, columns.bag, table, bag_options)
    class_names = None if ready is None else ready.class_names
    if columns.label in table.column_names:
        class_names, labels = read_labels(table, columns.label, class_names)
    if class_names is None and need_classes:
        raise LLPError(
            f"{table.name}: nothing is known of the classes: give the table of the bags by --bags, or by "
            "--label-column a column with the classes to make bags from"
        )
    class_names = class_names or ()
    train = Instances(found.inputs, labels)
    source = images if instances is None else instances
    name = Path(source).stem if isinstance(source, str | Path) else "table"
    if isinstance(reader, ImageReader):
        data = Dataset.from_images(name, train, class_names=class_names, flip=flip)
    else:
        warnings = (*reader.encoder.warnings, *suspicious_features(of_features or table, reader.encoder, class_names))
        data = Dataset(
            name=name, train=train, test=None, class_names=class_names, encoder=reader.encoder, warnings=warnings
        )
    if test is not None:
        tested, more = labelled_instances(reader, test, class_names)
        data, notes = replace(data, test=tested), notes + more
    elif labels is not None:
        data = replace(data, test=train, tests_on="training instances")
    return OwnData(replace(data, notes=tuple(notes)), ready, ids)


def _from_table(
    bag_table: Table, ids: np.ndarray, columns: Sequence[str], rows: Table, options: Mapping[str, Any]
) -> tuple[Bags, list[str]]:
    """Bags to learn from: each of their classes must be somewhere."""
    bags, notes = read_bags(bag_table, ids, columns, rows=rows, **options)
    for c in np.flatnonzero(bags.class_shares == 0)[:1]:
        raise LLPError(
            f"{bag_table.name}: class {bags.class_names[c]!r} is 0 in every bag, so nothing can be learnt of it: leave "
            "its column out"
        )
    return bags, notes
