import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from torchllp.data.safe_pickle import load_arrays
from torchllp.errors import LLPError


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_protocol(tmp_path: Path, protocol: int, order: str) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 256, (3, 5, 2)), dtype=np.uint8, order=order)  # pyrefly: ignore
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps({"data": array, "rows": [1, 2], "floats": array / 7, "raw": b"\xff\x00"}, protocol))
    content = load_arrays(path)
    assert np.array_equal(content["data"], array) and content["data"].dtype == np.uint8
    assert np.array_equal(content["floats"], array / 7)
    assert content["rows"] == [1, 2] and content["raw"] == b"\xff\x00"


def test_modules_of_older_numpy(tmp_path: Path) -> None:
    path = tmp_path / "old.pkl"
    path.write_bytes(pickle.dumps(np.arange(300), 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert np.array_equal(load_arrays(path), np.arange(300))


def test_array_that_python_2_wrote(tmp_path: Path) -> None:
    """There the bytes of an array, and every text, are strings of no encoding (opcode U)."""
    path = tmp_path / "python2.pkl"
    path.write_bytes(
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x03\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x03\x00\x80\xfftbs."
    )
    assert load_arrays(path)["data"].tolist() == [0, 128, 255]


class Harmful:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.system, eval, np.load, pickle.loads, getattr])
def test_other_names_are_refused_and_not_run(tmp_path: Path, protocol: int, call: object) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "bad.pkl"
    content = pickle.dumps({"data": Harmful(call, f"touch {mark}")}, protocol)
    path.write_bytes(content)
    name = call.__name__  # pyrefly: ignore
    with pytest.raises(LLPError, match=rf"bad\.pkl: refused, since it asks for \S+\.{name}, which no array needs$"):
        load_arrays(path)
    assert not mark.exists()


def test_every_cut_of_a_pickle_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.pkl"
    whole = pickle.dumps({"data": np.arange(6, dtype=np.uint8)}, 4)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(LLPError, match=r"cut\.pkl: not a pickle that can be read \("):
            load_arrays(path)


@pytest.mark.parametrize("array", [np.array([{}, None]), np.array(["text"]), np.zeros(2, [("a", "u1")])])
def test_arrays_of_anything_but_numbers_are_not_read(tmp_path: Path, array: np.ndarray) -> None:
    path = tmp_path / "objects.pkl"
    path.write_bytes(pickle.dumps(array, 4))
    with pytest.raises(LLPError, match=r"objects\.pkl: not a pickle that can be read \(arrays of .* are not read\)"):
        load_arrays(path)


def test_flags_that_would_make_numpy_free_numbers_as_objects(tmp_path: Path) -> None:
    path = tmp_path / "flags.pkl"
    whole = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
    marked = whole.replace(b"J\xff\xff\xff\xffK\x00t", b"J\xff\xff\xff\xffK\x3ft")
    assert marked != whole
    path.write_bytes(marked)
    assert load_arrays(path).tolist() == [0, 1, 2, 3]


def test_big_endian_and_writable(tmp_path: Path) -> None:
    path = tmp_path / "big.pkl"
    for protocol in (2, 5):
        path.write_bytes(pickle.dumps(np.arange(4, dtype=">i4"), protocol))
        array = load_arrays(path)
        array += 1
        assert array.tolist() == [1, 2, 3, 4]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LLPError, match=r"none\.pkl: not a pickle that can be read"):
        load_arrays(tmp_path / "none.pkl")
