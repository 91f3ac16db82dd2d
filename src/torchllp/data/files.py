"""Where the files of a data set are, and whether they are the published ones."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torchllp.data.dataset import Dataset
from torchllp.errors import LLPError


def data_directory(data_dir: str | os.PathLike[str] | None) -> Path:
    """The directory that holds the data sets: as given, else ``TORCHLLP_DATA``, else ``data``."""
    return Path(data_dir or os.environ.get("TORCHLLP_DATA") or "data")


def find_files(name: str, directories: list[Path], files: list[str]) -> Path:
    """The first of these directories that has all of the files, or one sentence that says how to get them.

    >>> find_files("cifar10", [Path("nowhere")], ["data_batch_1"])
    Traceback (most recent call last):
    torchllp.errors.LLPError: cifar10: no data_batch_1 in nowhere: get it by llp check --dataset cifar10 --download, \
or say where it is by --data-dir or TORCHLLP_DATA
    """
    for directory in directories:
        if all((directory / file).is_file() for file in files):
            return directory
    missing = next(file for file in files if not (directories[0] / file).is_file())
    looked = " or ".join(str(directory) for directory in directories)
    raise LLPError(
        f"{name}: no {missing} in {looked}: get it by llp check --dataset {name} --download, "
        "or say where it is by --data-dir or TORCHLLP_DATA"
    )


def with_provenance(data: Dataset, directory: Path, published: Mapping[str, str]) -> Dataset:
    """The data set, with a warning for each of its files whose MD5 is not the published one.

    Then its name says so too, and with it every table: figures on other files are not figures on the data set.
    """
    warnings = checksum_warnings(directory, published)
    name = f"{data.name} (not the published files, {len(data.train):,} training images)" if warnings else data.name
    return replace(data, name=name, warnings=warnings)


def checksum_warnings(directory: Path, published: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each file whose MD5 is not the published one."""
    warnings = []
    for name, expected in published.items():
        with open(directory / name, "rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest()
        if found != expected:
            warnings.append(f"{directory / name}: not the published file (its MD5 is {found}, not {expected})")
    return tuple(warnings)


def find_or_download(
    name: str, root: Path, directories: list[Path], files: list[str], download: Callable[[Path], object] | None
) -> Path:
    """Like :func:`find_files`, after fetching what is missing to ``root`` by ``download`` where that is given."""
    try:
        return find_files(name, directories, files)
    except LLPError:
        if download is None:
            raise
    try:
        download(root)
    except (OSError, RuntimeError) as error:
        raise LLPError(f"{name}: the download to {root} failed: {' '.join(str(error).split())}") from error
    return find_files(name, directories, files)
