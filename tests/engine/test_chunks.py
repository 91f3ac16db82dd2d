"""A step in chunks is the step in one pass, in the memory of a chunk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchllp import Bags, Compute, LLPError, Recipe, create_method, create_model, load_dataset, train
from torchllp.batch import BagBatch
from torchllp.cli import main
from torchllp.engine.chunks import Chunked
from torchllp.engine.train import Learner

NUM_VIEWS = {"dllp": 1, "ahil": 2}


class Whole:
    """A step of two ragged bags with random views, given whole or by the numbers of its instances."""

    def __init__(self, method: str, dtype: torch.dtype, num_instances: int = 23, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.views = torch.randn(2, num_instances, 1, 6, 6, generator=generator).to(dtype)
        self.num_views, self.num_instances = NUM_VIEWS[method], num_instances
        self.known = {
            "bag_index": (torch.arange(num_instances) > num_instances // 3).long(),
            "proportions": torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]], dtype=dtype),
        }

    def view(self, chunk: Tensor) -> Tensor:
        return torch.cat([view[chunk] for view in self.views[: self.num_views]])

    @property
    def batch(self) -> BagBatch:
        return BagBatch(weak=self.views[0], strong=self.views[1], **self.known)

    @property
    def numbers(self) -> BagBatch:
        numbers = torch.arange(self.num_instances)
        return BagBatch(weak=numbers, strong=numbers + self.num_instances, **self.known)


class InOrder(nn.Module):
    """What a chunked model must equal: the chunks one after the other, and everything kept for the backward pass."""

    def __init__(self, model: nn.Module, step: Whole, chunk_size: int) -> None:
        super().__init__()
        self.model, self.step, self.chunk_size = model, step, chunk_size

    def forward(self, numbers: Tensor) -> Tensor:
        chunks = torch.arange(self.step.num_instances).split(self.chunk_size)
        parts = [self.model(self.step.view(chunk)).chunk(self.step.num_views) for chunk in chunks]
        return torch.cat([torch.cat([part[view] for part in parts]) for view in range(self.step.num_views)])


def net(dtype: torch.dtype, *layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).to(dtype)


def gradients(learner: nn.Module, *arguments: object) -> list[Tensor]:
    learner.zero_grad()
    loss = learner(*arguments)["loss"]
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in learner.parameters() if p.grad is not None)]


@pytest.mark.parametrize("method", NUM_VIEWS)
@pytest.mark.parametrize("layer", [None, "batch norm in evaluation"])
def test_chunks_have_the_gradient_of_one_pass(method: str, layer: str | None) -> None:
    @settings(deadline=None, max_examples=20)
    @given(st.integers(1, 30), st.integers(1, 24), st.integers(0, 99))
    def check(num_instances: int, chunk_size: int, seed: int) -> None:
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            step = Whole(method, dtype, num_instances + 1, seed)
            model = net(dtype, *[nn.BatchNorm2d(4)] * (layer is not None))
            model.eval()
            learner = Learner(model, create_method(method), chunk_size)
            one_pass = gradients(learner, step.batch)
            for one, two in zip(one_pass, gradients(learner, step.numbers, step.view), strict=True):
                assert (one - two).norm() <= tolerance * one.norm()

    check()


@pytest.mark.parametrize("method", NUM_VIEWS)
def test_dropout_and_batch_norm_see_the_same_in_both_passes(method: str) -> None:
    step, chunk_size = Whole(method, torch.float64), 7
    model = net(torch.float64, nn.BatchNorm2d(4), nn.Dropout(0.5))
    first_state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    in_order = gradients(Learner(InOrder(model, step, chunk_size), create_method(method)), step.numbers)

    model.load_state_dict(first_state)
    torch.manual_seed(5)
    chunked = gradients(Learner(model, create_method(method), chunk_size), step.numbers, step.view)
    for one, two in zip(in_order, chunked, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)

    moved = {name: value.clone() for name, value in model[1].named_buffers()}
    model.load_state_dict(first_state)
    with torch.no_grad():  # the backward pass comes to the last chunk first
        for chunk in reversed(torch.arange(step.num_instances).split(chunk_size)):
            model(step.view(chunk))
    torch.testing.assert_close(moved, dict(model[1].named_buffers()))


def test_the_first_pass_moves_no_statistic() -> None:
    step = Whole("dllp", torch.float64)
    model = net(torch.float64, nn.BatchNorm2d(4))
    before = {name: value.clone() for name, value in model.named_buffers()}
    Chunked(model, step.view, num_instances=23, chunk_size=5)(torch.arange(23))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_a_training_in_chunks_is_the_training_without() -> None:
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 300, 0)

    def outcome(chunk_size: int | None):
        torch.manual_seed(0)
        model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
        compute = Compute(device="cpu", threads=1, chunk_size=chunk_size)
        return train(model, create_method("ahil"), data, bags, recipe=Recipe(epochs=2), compute=compute)

    whole, chunked = outcome(None), outcome(77)
    torch.testing.assert_close(dict(whole.model.state_dict()), dict(chunked.model.state_dict()), rtol=1e-4, atol=1e-6)
    assert whole.metrics[-1]["train/loss"] == pytest.approx(chunked.metrics[-1]["train/loss"], rel=1e-5)


LARGE_BAG = """
import json, resource, sys
import torch
from torchllp import Bags, Compute, Dataset, Instances, Recipe, create_method, create_model, train
torch.manual_seed(0)
images = torch.randint(256, (3000, 1, 28, 28), dtype=torch.uint8)
labels = torch.arange(3000) % 10
train_on = Instances(images, labels)
data = Dataset(name="noise", train=train_on, test=None, class_names=tuple("0123456789"), mean=(0.5,), std=(0.25,))
model = create_model("small-cnn", num_classes=10, input_shape=(1, 28, 28))
bags = Bags.random(labels.numpy(), int(sys.argv[1]), 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
compute = Compute(device="cpu", threads=1, chunk_size=100)
train(model, create_method("ahil"), data, bags, recipe=Recipe(epochs=1, instances_per_step=100), compute=compute)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_a_bag_of_all_images_takes_the_memory_of_a_chunk() -> None:
    """Against the same images in bags that are chunks."""
    peaks = []
    for bag_size in (100, 3000):
        process = subprocess.run(
            [sys.executable, "-c", LARGE_BAG, str(bag_size)], capture_output=True, text=True, timeout=300
        )
        assert process.returncode == 0, process.stderr
        peaks.append(json.loads(process.stdout))
    assert peaks[1] < 1.5 * peaks[0] + 20_000  # KiB; in one pass it would be 30 times as much


def test_other_methods_refuse_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "--method", "rot", "--chunk-size", "32", "--run", str(run)]) == 1
    assert "ROT needs all views of a step together: chunk_size is for ahil and dllp" in capsys.readouterr().err
    assert not run.exists()
    data = load_dataset("digits")
    assert data.train.labels is not None
    bags = Bags.random(data.train.labels.numpy(), 16, 0)
    model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
    with pytest.raises(LLPError, match="chunk_size is for ahil and dllp"):
        train(model, create_method("llp-vat"), data, bags, compute=Compute(chunk_size=5))
