"""Several processes: each has whole bags, and together they do what one would."""

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from processes import start_processes
from torchllp import Bags, Compute, Recipe, create_method, create_model, load_dataset, train
from torchllp.engine.batches import BatchMaker
from torchllp.engine.checks import check_parts
from torchllp.engine.distributed import Processes, join, noticing_losses, together, wrap
from torchllp.engine.precision import pick_device
from torchllp.engine.views import views_of
from torchllp.errors import LLPError, ProcessLost
from torchllp.methods.terms import BAG_TERMS


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_every_bag_of_a_step_goes_to_one_process(sizes: list[int], count: int) -> None:
    shares = [Processes(rank, count).share(np.array(sizes)) for rank in range(count)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(sizes)))
    loads = [np.array(sizes)[share].sum() for share in shares]
    assert max(loads) - min(loads) <= max(sizes)  # no process could give a bag away and be better off
    assert all((np.diff(share) > 0).all() for share in shares)


def _bags() -> Bags:
    """Ragged bags of digits, one of them larger than a step: then there are more processes than bags."""
    labels = load_dataset("digits").train.labels
    assert labels is not None
    sizes = [400, *[30, 7, 55, 1, 90] * 4, 305]
    bag_of = np.repeat(np.arange(len(sizes)), sizes)
    return Bags.from_labels(np.concatenate([bag_of, np.full(len(labels) - len(bag_of), -1)]), labels.numpy())


CASES = {
    "running statistics": ("softmatch", "mlp", Compute()),
    "a mean over bags": ("rot", "mlp", Compute()),
    "batch norm": ("ahil", "small-cnn", Compute(sync_batch_norm=True, channels_last=False)),
    "chunks": ("ahil", "mlp", Compute(chunk_size=40)),
    "chunks of a stream": ("ahil", "mlp", Compute(chunk_size=40, stream=True)),
}


def _outcome(case: str):
    method, model, compute = CASES[case]
    train_bags, held_out = _bags().hold_out(3, seed=0)
    torch.manual_seed(0)
    return train(
        create_model(model, num_classes=10, input_shape=(1, 8, 8)),
        create_method(method),
        load_dataset("digits"),
        train_bags,
        held_out=held_out,
        recipe=Recipe(epochs=2, instances_per_step=128, lr=0.05),
        compute=compute.model_copy(update={"device": "cpu", "threads": 1}),
    )


def _share_of_a_step(processes: Processes, generator: torch.Generator):
    data, bags = load_dataset("digits"), _bags()
    maker = BatchMaker(data.train, bags, views_of(data, Recipe()), create_method("ahil"), processes=processes)
    step = maker.make(maker.share(np.array([3, 20, 5, 8])), generator=generator, progress=0.0)
    return step.batch, step.labels


@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_of_a_step_are_the_step(count: int) -> None:
    """The views, too, though every process draws for itself."""
    whole, labels = _share_of_a_step(Processes(), torch.Generator().manual_seed(5))
    shares = [_share_of_a_step(Processes(rank, count), torch.Generator().manual_seed(5)) for rank in range(count)]
    assert labels is not None and whole.strong is not None
    place = torch.cat([batch.step_rows for batch, _ in shares])
    assert place.sort().values.equal(torch.arange(len(whole.weak)))
    for name in ("weak", "strong"):
        assert torch.cat([getattr(batch, name) for batch, _ in shares]).equal(getattr(whole, name)[place])
    assert torch.cat([own for _, own in shares]).equal(labels[place])
    for batch, _ in shares:
        assert batch.bags is not None and whole.bags is not None
        assert batch.bags[batch.bag_index].equal(whole.bags[whole.bag_index][batch.step_rows])
        assert batch.num_bags == 4 / count and batch.num_instances == len(whole.weak) / count
        assert batch.step_size == len(whole.weak)


@pytest.mark.parametrize("bag_term", BAG_TERMS)
def test_a_process_without_a_bag_works_for_nothing(bag_term: str) -> None:
    data, bags = load_dataset("digits"), _bags()
    method = create_method("ahil", bag_term=bag_term)
    maker = BatchMaker(data.train, bags, views_of(data, Recipe()), method, processes=Processes(1, 2))
    batch = maker.make(maker.share(np.array([0])), generator=torch.Generator().manual_seed(0), progress=0.0).batch
    assert len(batch.weak) == batch.step_size == 400
    model = create_model("mlp", num_classes=10, input_shape=(1, 8, 8))
    parts = method(model, batch)
    parts["loss"].backward()
    assert parts["loss"] == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def _worker(rank: int, folder: str, count: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    results: dict[str, object] = {}
    for case in CASES:
        outcome = _outcome(case)
        rows = [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in outcome.metrics]
        results[case] = (rows, outcome.model.state_dict())

    def fails_on_the_second() -> str:
        if rank == 1:
            raise LLPError("no such file")
        return "made"

    try:
        together(fails_on_the_second)
    except LLPError as error:
        results["error"] = str(error)

    def finds_a_cache() -> bool:
        cache = Path(folder, "cache")
        was_there = cache.exists()
        cache.touch()
        return was_there

    results["found"] = together(finds_a_cache)
    torch.save(results, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def test_three_processes_train_as_one(tmp_path: Path) -> None:
    start_processes(_worker, (str(tmp_path), 3), 3)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(3)]
    for case in CASES:
        alone = _outcome(case)
        rows, weights = results[0][case]
        for row, expected in zip(rows, alone.metrics, strict=True):
            assert row == pytest.approx({name: expected[name] for name in row}, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(weights, dict(alone.model.state_dict()), rtol=1e-4, atol=1e-5)
        for _, others in (results[1][case], results[2][case]):  # each has the whole outcome
            assert all(torch.equal(weights[name], others[name]) for name in weights)
        assert rows == results[1][case][0] == results[2][case][0]
    assert [result["error"] for result in results] == ["process 1: no such file"] * 3
    assert [result["found"] for result in results] == [False, True, True]


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() == Processes(0, 1)
    learner = torch.nn.Linear(2, 2)
    assert wrap(learner, torch.device("cpu")) is learner
    x = torch.ones(2)
    assert Processes().sum(x) is x and Processes().minimum(x) is x
    assert together(lambda: 5) == 5
    with pytest.raises(RuntimeError, match="gloo is only a word here"), noticing_losses():
        raise RuntimeError("gloo is only a word here")


def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)  # what asks for a GPU that need not be there
    assert pick_device("cuda") == torch.device("cuda:1")
    assert pick_device("cpu").type == "cpu"


def test_contrastive_learning_needs_the_step_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LLPError, match="SimCLR compares all instances of a step: train it as one process"):
        check_parts(create_method("simclr"), Compute())
    check_parts(create_method("ahil"), Compute())


def test_batch_norm_over_all_processes_needs_the_step_whole() -> None:
    """One process may have more chunks than another, which would wait for ever."""
    with pytest.raises(LLPError, match="leave out chunk_size or sync_batch_norm"):
        check_parts(create_method("ahil"), Compute(chunk_size=8, sync_batch_norm=True))


def test_a_lost_process_is_an_error_of_the_user(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(ProcessLost, match="another process of this training has gone"), noticing_losses():
            raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer")
        with pytest.raises(RuntimeError, match="size mismatch"), noticing_losses():
            raise RuntimeError("size mismatch")
    finally:
        dist.destroy_process_group()
