import numpy as np
import torch
from sklearn.datasets import load_digits

from torchllp import load_dataset


def test_digits_are_split_once_and_for_all() -> None:
    data, again = load_dataset("digits"), load_dataset("digits")
    assert data.test is not None and data.test.labels is not None and data.train.labels is not None
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.test.labels.bincount().tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]  # stratified
    assert torch.equal(data.test.inputs, again.test.inputs)  # pyrefly: ignore
    assert data.input_shape == (1, 8, 8) and data.train.inputs.dtype == torch.uint8
    assert not data.flip and not data.translate


def test_every_digit_is_in_exactly_one_part() -> None:
    data = load_dataset("digits")
    assert data.test is not None
    both = torch.cat([data.train.inputs, data.test.inputs]).view(-1, 64).numpy()
    original = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, both)) == sorted(map(bytes, original))


def test_statistics_are_those_of_the_training_images() -> None:
    data = load_dataset("digits")
    scaled = data.train.inputs.double() / 255
    assert abs(scaled.mean().item() - data.mean[0]) < 1e-9
    assert abs(scaled.std(correction=0).item() - data.std[0]) < 1e-9
