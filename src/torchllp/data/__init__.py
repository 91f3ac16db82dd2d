"""One file a source of data; this table names them without importing torch."""

from typing import TYPE_CHECKING

from torchllp.registry import Entry, Registry

if TYPE_CHECKING:
    from torchllp.data.dataset import Dataset

DATASETS = Registry(
    "data set",
    {"digits": Entry("torchllp.data.digits:load", "1,797 grey 8x8 digits that ship with scikit-learn, 10 classes")},
)


def list_datasets() -> list[str]:
    """Names that :func:`load_dataset` knows.

    >>> list_datasets()
    ['digits']
    """
    return DATASETS.names()


def load_dataset(name: str) -> "Dataset":
    """The data set called ``name``.

    >>> len(load_dataset("digits").test)
    360
    """
    return DATASETS.load(name)()
