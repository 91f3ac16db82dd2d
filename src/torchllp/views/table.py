"""Weak and strong views of the rows of a table: noise on numbers, and columns taken from other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from torchllp.errors import LLPError
from torchllp.views.parameters import Drawn


@dataclass(frozen=True)
class WeakDraw(Drawn):
    """What is added to each row: noise, and 0 where the feature is of a category."""

    noise: Tensor  # [N, D] float32


@dataclass(frozen=True)
class StrongDraw(Drawn):
    """A weak draw of its own, and the row of the source that each feature is taken from."""

    weak: WeakDraw
    donor: Tensor  # [N, D] int64, the same for all features of a column; -1 where the row keeps its value

    def prepare(self) -> Self:
        """Itself: each row takes the same kernels, so there is nothing to group, as there is for images."""
        return self


@dataclass(frozen=True, eq=False)
class TableViews:
    """Views of rows [N, D] of features, as float32: a number is one feature, a category one 0/1 feature a value.

    Weak: Gaussian noise on the numbers; categories are left alone.

    Strong: a weak view of its own in which some columns, as many in each row, are replaced as in SCARF: each takes the
    value of a random row of `source`, a row of its own, so by the frequencies of the column. A category is replaced
    whole, and stays one. Where there are two columns or more at least one is replaced and at least one stays.

    Drawing is on the CPU, for all ranks at once; a rank selects its rows and moves them:

    >>> rows = torch.tensor([[0.5, 1.0, 0.0], [-1.5, 0.0, 1.0]])  # a number, and a category of two values
    >>> views = TableViews(columns=(0, 1, 1), is_number=(True, False, False), source=rows)
    >>> generator, mine = torch.Generator().manual_seed(0), torch.tensor([1])
    >>> weak = views.draw_weak(2, rows.shape, generator).select(mine).to("cpu")
    >>> (views.weak(rows[mine], weak) - rows[mine]).abs().gt(0)
    tensor([[ True, False, False]])
    >>> strong = views.draw_strong(2, rows.shape, generator).select(mine).prepare().to("cpu")
    >>> views.strong(rows[mine], strong).shape
    torch.Size([1, 3])
    """

    columns: tuple[int, ...]  # [D], the column of the table that each feature encodes
    is_number: tuple[bool, ...]  # [D]
    source: Tensor | None = field(
        default=None, repr=False
    )  # [N, D] float32, the training rows on their device; only the strong view needs it
    noise: float = 0.1  # standard deviation, for numbers that are standardised
    corruption: float = 0.3  # share of the columns that the strong view replaces

    def __post_init__(self) -> None:
        if not 0 < len(self.columns) == len(self.is_number):
            raise LLPError(
                "columns and is_number must have one value for each feature, "
                f"not {len(self.columns)} and {len(self.is_number)} values"
            )
        if not 0 <= self.noise < math.inf:
            raise LLPError(f"noise is a standard deviation, 0 or above, not {self.noise:g}")
        if not 0 <= self.corruption < 1:
            raise LLPError(f"corruption is a share of the columns, from 0 to below 1, not {self.corruption:g}")
        if self.source is not None:
            dtype, shape = self.source.dtype, self.source.shape
            if dtype != torch.float32 or len(shape) != 2 or not len(self.source):
                raise LLPError(f"source must be float32 rows, at least one, not {dtype} of shape {list(shape)}")
            self._check(shape)

    @cached_property
    def _deviation(self) -> Tensor:
        return self.noise * torch.tensor(self.is_number)

    @cached_property
    def _column_of(self) -> Tensor:
        """For each feature its column, numbered without gaps."""
        return torch.from_numpy(np.unique(self.columns, return_inverse=True)[1])

    @cached_property
    def _cells(self) -> Tensor:
        """The source as one long row: taking cells that lie far apart from it takes half the time of gather."""
        return self._donors().reshape(-1)

    def draw_weak(self, num_rows: int, shape: Sequence[int], generator: torch.Generator) -> WeakDraw:
        """Draw for rows whose `shape` ends in the number of features."""
        self._check(shape)
        return WeakDraw(torch.randn(num_rows, len(self.columns), generator=generator).mul_(self._deviation))

    def draw_strong(self, num_rows: int, shape: Sequence[int], generator: torch.Generator) -> StrongDraw:
        """Draw for rows whose `shape` ends in the number of features, a weak view included."""
        weak = self.draw_weak(num_rows, shape, generator)
        num_columns = len({*self.columns})
        num_replaced = min(max(1, round(self.corruption * num_columns)), num_columns - 1) if self.corruption else 0
        order = torch.rand(num_rows, num_columns, generator=generator)
        replaced = order.topk(num_replaced, sorted=False).indices  # donors are all alike, so any order will do
        donor = torch.randint(len(self._donors()), replaced.shape, generator=generator)
        donor_of_column = torch.full(order.shape, -1).scatter_(1, replaced, donor)
        if num_columns == len(self.columns):
            return StrongDraw(weak, donor_of_column)
        return StrongDraw(weak, donor_of_column.index_select(1, self._column_of))

    def weak(self, rows: Tensor, parameters: WeakDraw) -> Tensor:
        """The weak view by parameters that are on the rows' device."""
        return self.plain(rows) + parameters.noise

    def strong(self, rows: Tensor, parameters: StrongDraw) -> Tensor:
        """The strong view by parameters that are on the rows' device."""
        num_features = len(self.columns)
        cells = parameters.donor.clamp(min=0) * num_features + torch.arange(num_features, device=rows.device)
        taken = self._cells.index_select(0, cells.reshape(-1)).reshape(cells.shape)
        return torch.where(parameters.donor < 0, self.weak(rows, parameters.weak), taken)

    def plain(self, rows: Tensor) -> Tensor:
        """No augmentation, for evaluation: the rows as they are."""
        self._check(rows.shape)
        return rows.float()

    def _check(self, shape: Sequence[int]) -> None:
        if shape[-1] != len(self.columns):
            raise LLPError(f"rows of {shape[-1]} features do not fit views of {len(self.columns)} features")

    def _donors(self) -> Tensor:
        if self.source is None:
            raise LLPError("the strong view takes values from the training rows: give them as source")
        return self.source
