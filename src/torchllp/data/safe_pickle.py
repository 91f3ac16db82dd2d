"""Pickles of arrays that others made, read without running anything that is in them."""

import codecs
import pickle
from pathlib import Path
from typing import IO, Any

import numpy as np

from torchllp.errors import LLPError


class _DType:
    """In place of ``numpy.dtype``, whose own ``__setstate__`` believes any flags, even those that break memory."""

    def __init__(self, name: str, *_: object) -> None:
        self.value = np.dtype(name)
        if self.value.kind not in "biuf":
            raise ValueError(f"arrays of {name!r} are not read")

    def __setstate__(self, state: tuple) -> None:
        self.value = self.value.newbyteorder(state[1])


class _Array:
    """In place of ``numpy.ndarray``: an array that is made from its state alone."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, columns_first, data = state
        data = data.encode("latin1") if isinstance(data, str) else data  # a string of Python 2
        self.value = _from_buffer(data, dtype, shape, "F" if columns_first else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(data: bytes, dtype: _DType, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(data, dtype.value).reshape(shape, order=order).copy(order)  # one that can be written


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,  # arrays in protocol 5
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): codecs.encode,  # bytes in protocols before 3
}


class _ArrayUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="latin1")  # Python 2 wrote bytes and text alike
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise LLPError(f"{self.path}: refused, since it asks for {module}.{name}, which no array needs")
        return _ALLOWED[module, name]


def load_arrays(path: Path) -> Any:
    """The arrays of numbers and plain values in this pickle; the strings of Python 2 come as text."""
    try:
        with open(path, "rb") as file:
            return _with_arrays(_ArrayUnpickler(file, path).load())
    except LLPError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise LLPError(f"{path}: not a pickle that can be read ({error})") from error


def _with_arrays(content: Any) -> Any:
    if isinstance(content, _Array | _DType):
        return content.value
    if isinstance(content, dict):
        return {key: _with_arrays(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_with_arrays(value) for value in content)
    return content
