"""Instances that are read step by step make the same training."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from torchllp import Bags, Compute, Dataset, Instances, Recipe, create_method, create_model, load_dataset, train
from torchllp.engine.stream import ahead, is_too_large, take


def test_the_next_one_is_made_while_one_is_in_use() -> None:
    made: list[int] = []
    is_second_made = threading.Event()

    def make(number: int) -> int:
        made.append(number)
        if number == 1:
            is_second_made.set()
        return 10 * number

    stream = ahead(make, range(5))
    assert next(stream) == 0
    assert is_second_made.wait(30)
    assert made == [0, 1]  # never two ahead
    assert list(stream) == [10, 20, 30, 40]
    assert made == [0, 1, 2, 3, 4]
    assert list(ahead(make, [])) == []


def test_an_error_comes_where_its_item_would_and_the_thread_ends() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise OSError("the disk is gone")
        return number

    stream = ahead(make, range(5))
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)
    left = ahead(make, range(2))
    next(left)
    left.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("torchllp-stream")]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rows_of_a_memory_map(tmp_path: Path, dtype: type) -> None:
    values = np.random.default_rng(0).integers(200, size=(50, 3, 4)).astype(dtype)
    np.save(tmp_path / "rows.npy", values)
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    rows = torch.tensor([7, 0, 7, 49])
    assert take(mapped, rows, torch.device("cpu")).equal(torch.from_numpy(values)[rows])


def test_what_is_too_large_is_streamed() -> None:
    assert not is_too_large(torch.zeros(10), torch.device("cpu"))
    assert is_too_large(torch.zeros(1).expand(10**14), torch.device("cpu"))


def _mapped(data: Dataset, folder: Path) -> Dataset:
    np.save(folder / "inputs.npy", data.train.inputs.numpy())
    mapped = torch.from_numpy(np.load(folder / "inputs.npy", mmap_mode="c"))
    return replace(data, train=Instances(mapped, data.train.labels))


def _rows() -> Dataset:
    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(0)) / X.std(0)).astype(np.float32)
    labelled = Instances(torch.from_numpy(X), torch.from_numpy(y))
    return Dataset(name="cancer", train=labelled, test=labelled, class_names=("malignant", "benign"))


@pytest.mark.parametrize("chunk_size", [None, 40])
@pytest.mark.parametrize("kind", ["images", "rows"])
def test_a_streamed_training_is_the_same_bit_for_bit(tmp_path: Path, kind: str, chunk_size: int | None) -> None:
    data = load_dataset("digits") if kind == "images" else _rows()
    assert data.train.labels is not None
    bags, held_out = Bags.random(data.train.labels.numpy(), 16, 0).hold_out(4, seed=0)

    def outcome(data: Dataset, *, stream: bool):
        torch.manual_seed(0)
        model = create_model("mlp", num_classes=len(data.class_names), input_shape=data.input_shape)
        return train(
            model,
            create_method("ahil"),
            data,
            bags,
            held_out=held_out,
            recipe=Recipe(epochs=2),
            compute=Compute(device="cpu", threads=1, stream=stream, chunk_size=chunk_size),
        )

    in_memory, streamed = outcome(data, stream=False), outcome(_mapped(data, tmp_path), stream=True)
    for one, two in zip(in_memory.metrics, streamed.metrics, strict=True):
        assert {name: value for name, value in one.items() if not name.endswith("seconds")} == {
            name: value for name, value in two.items() if not name.endswith("seconds")
        }
    weights = streamed.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in in_memory.model.state_dict().items())
