"""One file a source of data; this table names them without importing torch."""

import os
from typing import TYPE_CHECKING

from torchllp.registry import Entry, Registry

if TYPE_CHECKING:
    from torchllp.data.dataset import Dataset

DATASETS = Registry(
    "data set",
    {
        "digits": Entry("torchllp.data.digits:load", "1,797 grey 8x8 digits that ship with scikit-learn, 10 classes"),
        "fashion-mnist": Entry("torchllp.data.fashion_mnist:load", "70,000 grey 28x28 garments, 10 classes"),
        "svhn": Entry("torchllp.data.svhn:load", "99,289 colour 32x32 house-number digits, 10 classes, not balanced"),
        "cifar10": Entry("torchllp.data.cifar:load_cifar10", "60,000 colour 32x32 photographs, 10 classes"),
        "cifar100": Entry("torchllp.data.cifar:load_cifar100", "60,000 colour 32x32 photographs, 100 classes"),
        "mini-imagenet": Entry("torchllp.data.mini_imagenet:load", "60,000 colour photographs at 64x64, 100 classes"),
    },
)


BAG_MAKERS = ("random", "dirichlet", "cluster", "by-feature", "natural")
"""The ways of :func:`torchllp.make_bags` to make bags from labels."""


def list_datasets() -> list[str]:
    """Names that :func:`load_dataset` knows.

    >>> list_datasets()
    ['cifar10', 'cifar100', 'digits', 'fashion-mnist', 'mini-imagenet', 'svhn']
    """
    return DATASETS.names()


def load_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, download: bool = False, **options: str
) -> "Dataset":
    """The data set called ``name``, from its files in ``data_dir`` (else ``TORCHLLP_DATA``, else ``data``).

    ``download`` fetches files that are missing. ``options`` are those of the one data set (mini-imagenet: ``split``).

    >>> len(load_dataset("digits").test)
    360
    """
    return DATASETS.load(name)(data_dir, download=download, **options)
