"""Table views: noise on numbers only, columns replaced whole from other rows, and nothing that waits for a device."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchllp.errors import LLPError
from torchllp.views.parameters import Drawn
from torchllp.views.table import StrongDraw, TableViews, WeakDraw

# The number of values of each column, 1 for a number.
KINDS = [[1, 3, 1, 2, 4], [1, 1], [2, 3], [1], [5], [1] * 10]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_table(kinds: list[int], num_rows: int, seed: int = 0) -> Tensor:
    """Rows whose numbers are all different, so that it shows where a value comes from."""
    generator = seeded(seed)
    encoded = [
        torch.randn(num_rows, 1, generator=generator)
        if kind == 1
        else torch.eye(kind)[torch.randint(kind, (num_rows,), generator=generator)]
        for kind in kinds
    ]
    return torch.cat(encoded, 1)


def make_views(kinds: list[int], *, num_donors: int = 50, **options) -> TableViews:
    """Views of such rows, of a table that has other columns too: its columns 3, 5, 7, ... are features."""
    columns = tuple(3 + 2 * column for column, kind in enumerate(kinds) for _ in range(kind))
    is_number = tuple(kind == 1 for kind in kinds for _ in range(kind))
    return TableViews(columns, is_number, random_table(kinds, num_donors, seed=99), **options)


def blocks(views: TableViews) -> list[list[int]]:
    """The features of each column."""
    return [[i for i, name in enumerate(views.columns) if name == column] for column in sorted(set(views.columns))]


def replaced_columns(views: TableViews, drawn: StrongDraw) -> Tensor:
    """Which columns [N, K] the draw replaces."""
    return torch.stack([drawn.donor[:, block[0]] >= 0 for block in blocks(views)], 1)


def loop_weak(views: TableViews, rows: Tensor, drawn: WeakDraw) -> Tensor:
    result = rows.clone()
    for i in range(len(rows)):
        for j in range(rows.shape[1]):
            if views.is_number[j]:
                result[i, j] += drawn.noise[i, j]
    return result


def loop_strong(views: TableViews, rows: Tensor, drawn: StrongDraw) -> Tensor:
    assert views.source is not None
    result = loop_weak(views, rows, drawn.weak)
    for i in range(len(rows)):
        for block in blocks(views):
            donor = drawn.donor[i, block[0]]  # one for the whole column
            for j in block:
                if donor >= 0:
                    result[i, j] = views.source[donor, j]
    return result


@pytest.mark.parametrize("kinds", KINDS)
def test_both_views_equal_plain_loops(kinds: list[int]) -> None:
    views, rows = make_views(kinds, corruption=0.4), random_table(kinds, 30)
    weak, strong = (draw(30, rows.shape, seeded()) for draw in (views.draw_weak, views.draw_strong))
    assert torch.equal(views.weak(rows, weak), loop_weak(views, rows, weak))
    assert torch.equal(views.strong(rows, strong.prepare()), loop_strong(views, rows, strong))


@pytest.mark.parametrize("kinds", KINDS)
def test_each_column_is_the_rows_own_or_that_of_a_training_row(kinds: list[int]) -> None:
    """Seen from the outside: without noise, a column of the view is the row's or one donor's, whole."""
    views, rows = make_views(kinds, noise=0.0, corruption=0.5), random_table(kinds, 40)
    strong = views.strong(rows, views.draw_strong(40, rows.shape, seeded()).prepare())
    assert views.source is not None
    for block in blocks(views):
        known = {tuple(row) for row in views.source[:, block].tolist()}
        for before, after in zip(rows[:, block].tolist(), strong[:, block].tolist(), strict=True):
            assert after == before or tuple(after) in known
        if not views.is_number[block[0]]:
            assert strong[:, block].sum(1).eq(1).all() and set(strong[:, block].unique().tolist()) <= {0, 1}


@pytest.mark.parametrize("spread", [(0, 1, 0, 1, 2), (7, -4, 7, 7, -4)])
def test_a_column_is_replaced_whole_wherever_its_features_stand(spread: tuple[int, ...]) -> None:
    """Each donor's row is constant: a column of two values has come from two donors."""
    source = torch.arange(100.0)[:, None].expand(-1, 5)
    views = TableViews(spread, (False,) * 5, source, corruption=0.6)
    strong = views.strong(torch.full((200, 5), -1.0), views.draw_strong(200, (5,), seeded()).prepare())
    assert (strong >= 0).any(0).all() and (strong < 0).any(0).all()
    for block in blocks(views):
        assert strong[:, block].eq(strong[:, block[:1]]).all()


@pytest.mark.parametrize(
    ("num_columns", "corruption", "expected"),
    [(1, 0.9, 0), (2, 0.01, 1), (2, 0.99, 1), (5, 0.0, 0), (5, 0.01, 1), (5, 0.3, 2), (5, 0.99, 4), (10, 0.3, 3)],
)
@pytest.mark.parametrize("kind", [1, 3])
def test_number_of_replaced_columns(num_columns: int, corruption: float, expected: int, kind: int) -> None:
    views = make_views([kind] * num_columns, corruption=corruption)
    drawn = views.draw_strong(300, (kind * num_columns,), seeded())
    assert replaced_columns(views, drawn).sum(1).eq(expected).all()


def test_all_subsets_of_columns_are_equally_likely() -> None:
    """A category of ten values is as likely to be replaced as a number."""
    views = make_views([1, 10, 1, 2, 1], corruption=0.4)
    replaced = replaced_columns(views, views.draw_strong(20_000, (15,), seeded()))
    seen = Counter(tuple(row.nonzero().flatten().tolist()) for row in replaced)
    assert set(seen) == set(combinations(range(5), 2))
    assert all(abs(count / 20_000 - 0.1) < 0.01 for count in seen.values())


def test_donors_are_uniform_and_each_column_has_its_own() -> None:
    views = make_views([1] * 4, num_donors=10, corruption=0.5)
    donor = views.draw_strong(20_000, (4,), seeded()).donor
    share = donor[donor >= 0].bincount() / (donor >= 0).sum()
    assert torch.allclose(share, torch.full((10,), 0.1), atol=0.01)
    first, second = donor[donor >= 0].view(-1, 2).T
    assert abs((first == second).double().mean() - 0.1) < 0.01


def test_replaced_values_follow_the_frequencies_of_their_column() -> None:
    views = make_views([1, 3], corruption=0.5)
    views = replace(views, source=torch.cat([torch.zeros(10, 1), torch.eye(3)[[0] * 7 + [1] * 2 + [2]]], 1))
    drawn = views.draw_strong(20_000, (4,), seeded())
    strong = views.strong(torch.full((20_000, 4), -5.0), drawn.prepare())
    share = strong[replaced_columns(views, drawn)[:, 1], 1:].mean(0)
    assert torch.allclose(share, torch.tensor([0.7, 0.2, 0.1]), atol=0.015)


def test_noise_is_normal_on_numbers_and_none_on_categories() -> None:
    views, rows = make_views([1, 3, 1], noise=0.25), random_table([1, 3, 1], 50_000)
    shift = views.weak(rows, views.draw_weak(50_000, rows.shape, seeded())) - rows
    assert not shift[:, 1:4].any()
    numbers = shift[:, [0, 4]]
    assert torch.allclose(numbers.std(0), torch.tensor(0.25), atol=0.005)
    assert torch.allclose(numbers.mean(0), torch.tensor(0.0), atol=0.005)
    assert abs((numbers.abs() < 0.25).double().mean() - 0.6827) < 0.01
    assert abs(torch.corrcoef(numbers.T)[0, 1]) < 0.02


def test_the_strong_view_has_noise_of_its_own_and_its_replaced_values_have_none() -> None:
    kinds = [1] * 6
    views, rows, generator = make_views(kinds, corruption=0.5), random_table(kinds, 2000), seeded()
    weak, strong = (draw(2000, rows.shape, generator) for draw in (views.draw_weak, views.draw_strong))
    assert abs(torch.corrcoef(torch.stack([weak.noise.flatten(), strong.weak.noise.flatten()]))[0, 1]) < 0.03
    view, kept = views.strong(rows, strong.prepare()), strong.donor < 0
    assert abs((view - rows)[kept].std() - 0.1) < 0.005
    assert torch.isin(view[~kept], make_views(kinds).source).all()


def test_no_noise_and_no_corruption_leave_the_rows_alone() -> None:
    views, rows = make_views([1, 3, 1], noise=0.0, corruption=0.0), random_table([1, 3, 1], 20)
    strong = views.strong(rows, views.draw_strong(20, rows.shape, seeded()).prepare())
    assert torch.equal(strong, rows)
    assert torch.equal(views.plain(rows), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_output_is_float32_and_nothing_is_written_to(dtype: torch.dtype) -> None:
    views, rows = make_views([1, 3, 2]), random_table([1, 3, 2], 30).abs().to(dtype)
    assert views.source is not None
    originals = rows.clone(), views.source.clone()
    weak, strong = (draw(30, rows.shape, seeded()) for draw in (views.draw_weak, views.draw_strong))
    for view in (views.weak(rows, weak), views.strong(rows, strong.prepare()), views.plain(rows)):
        assert view.dtype == torch.float32 and view.shape == rows.shape
    assert torch.equal(rows, originals[0]) and torch.equal(views.source, originals[1])


def both_views(views: TableViews, rows: Tensor, weak: WeakDraw, strong: StrongDraw) -> Tensor:
    return torch.stack([views.weak(rows, weak), views.strong(rows, strong.prepare())], 1)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    num_rows=st.integers(0, 40),
    kinds=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    corruption=st.floats(0, 1, exclude_max=True),
)
def test_rows_do_not_see_one_another(seed: int, num_rows: int, kinds: list[int], corruption: float) -> None:
    """Permuted or selected rows with their parameters give the permuted or selected result, bit for bit."""
    views, rows, generator = make_views(kinds, corruption=corruption), random_table(kinds, num_rows, seed), seeded(seed)
    weak, strong = (draw(num_rows, rows.shape, generator) for draw in (views.draw_weak, views.draw_strong))
    result = both_views(views, rows, weak, strong)
    for index in (torch.randperm(num_rows, generator=generator), slice(num_rows // 3, None, 2)):
        selected = both_views(views, rows[index], weak.select(index), strong.select(index))
        assert torch.equal(selected, result[index])


def test_draws_are_a_function_of_the_seed() -> None:
    views = make_views([1, 3, 1, 1])

    def draw(seed: int) -> list[Tensor]:
        generator, found = seeded(seed), []
        drawn: list[Drawn] = [views.draw_weak(100, (6,), generator), views.draw_strong(100, (6,), generator)]
        for parameters in drawn:
            parameters.map(lambda tensor: found.append(tensor) or tensor)
        return found

    assert all(map(torch.equal, draw(1), draw(1)))
    assert not any(map(torch.equal, draw(1), draw(2)))


def test_views_on_a_device_never_wait_for_it() -> None:
    """Fake CUDA tensors raise on any host synchronisation, data-dependent shape and mix of devices."""
    kinds = [1, 3, 1, 2]
    views, rows = make_views(kinds), random_table(kinds, 64)
    weak, strong = (draw(64, rows.shape, seeded()) for draw in (views.draw_weak, views.draw_strong))
    with FakeTensorMode() as mode:
        rows = mode.from_tensor(rows).to("cuda")
        views = replace(views, source=mode.from_tensor(views.source).to("cuda"))
        weak, strong = (drawn.map(mode.from_tensor).to("cuda") for drawn in (weak, strong.prepare()))
        for view in (views.weak(rows, weak), views.strong(rows, strong), views.plain(rows)):
            assert view.device.type == "cuda"
            assert view.shape == rows.shape
            with pytest.raises(DataDependentOutputException):
                view.sum().item()


class Calls(TorchDispatchMode):
    """Counts the calls into torch, and keeps the largest number of values that one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.number += 1
        if not func.is_view:
            self.largest = max([self.largest, *(x.numel() for x in torch.utils._pytree.tree_leaves(result))])
        return result


def count_calls(num_columns: int, num_donors: int) -> Calls:
    views, rows = make_views([1] * num_columns, num_donors=num_donors), random_table([1] * num_columns, 32)
    with Calls() as calls:
        views.weak(rows, views.draw_weak(32, rows.shape, seeded()))
        views.strong(rows, views.draw_strong(32, rows.shape, seeded()).prepare().to("cpu"))
    return calls


def test_a_handful_of_kernels_and_no_copy_of_the_source_whatever_the_table() -> None:
    """Embeddings are a column each: 768 columns take as many calls as 4, and no more memory than the batch."""
    small, wide = count_calls(4, num_donors=10), count_calls(768, num_donors=1000)
    assert 0 < small.number == wide.number <= 40
    assert wide.largest == 32 * 768


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": (0, 1)}, "columns and is_number must have one value for each feature, not 2 and 3 values"),
        ({"is_number": (True,) * 4}, "columns and is_number must have one value for each feature, not 3 and 4 values"),
        ({"columns": (), "is_number": ()}, "must have one value for each feature, not 0 and 0 values"),
        ({"noise": -0.1}, "noise is a standard deviation, 0 or above, not -0.1"),
        ({"noise": math.inf}, "noise is a standard deviation, 0 or above, not inf"),
        ({"noise": math.nan}, "noise is a standard deviation, 0 or above, not nan"),
        ({"corruption": -0.1}, "corruption is a share of the columns, from 0 to below 1, not -0.1"),
        ({"corruption": 1.0}, "corruption is a share of the columns, from 0 to below 1, not 1"),
        ({"corruption": math.nan}, "corruption is a share of the columns, from 0 to below 1, not nan"),
        ({"source": torch.zeros(5, 4)}, "rows of 4 features do not fit views of 3 features"),
        ({"source": torch.zeros(0, 3)}, r"source must be float32 rows, at least one, not torch.float32 of .* \[0, 3\]"),
        ({"source": torch.zeros(3)}, r"source must be float32 rows, at least one, not torch.float32 of shape \[3\]"),
        ({"source": torch.zeros(5, 3).double()}, "source must be float32 rows, at least one, not torch.float64"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LLPError, match=message):
        TableViews(**{"columns": (0, 1, 1), "is_number": (True, False, False), **options})


def test_rows_of_another_width_are_refused() -> None:
    views = make_views([1, 2])
    weak, strong = (draw(1, (3,), seeded()) for draw in (views.draw_weak, views.draw_strong))
    rows = torch.zeros(1, 1)  # would be broadcast
    for view in (
        lambda: views.plain(rows),
        lambda: views.weak(rows, weak),
        lambda: views.strong(rows, strong),
        lambda: views.draw_weak(1, rows.shape, seeded()),
        lambda: views.draw_strong(1, rows.shape, seeded()),
    ):
        with pytest.raises(LLPError, match="rows of 1 features do not fit views of 3 features"):
            view()


def test_the_strong_view_alone_needs_the_source() -> None:
    with_source, rows = make_views([1, 2]), random_table([1, 2], 5)
    views = replace(with_source, source=None)
    assert torch.equal(views.plain(rows), rows)
    assert views.weak(rows, views.draw_weak(5, rows.shape, seeded())).shape == rows.shape
    for view in (
        lambda: views.draw_strong(5, rows.shape, seeded()),
        lambda: views.strong(rows, with_source.draw_strong(5, rows.shape, seeded())),
    ):
        with pytest.raises(LLPError, match="the strong view takes values from the training rows: give them as source"):
            view()
