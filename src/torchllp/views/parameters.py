"""The random parameters of the image views: drawn on the CPU, one row an image, then grouped by kernel.

Two stages, because a device must never be asked how many images drew an operation. The drawn form (`WeakParameters`,
`StrongParameters`) has one row an image and can be sliced. A weak draw goes to the device as it is; a strong one is
first grouped on the CPU by `prepare()`, so that the sizes of the groups in its `StrongPlan` are plain integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torchllp.device import move
from torchllp.views.operations import KERNELS

NUM_LAYERS = 2  # RandAugment operations in a row


class Operation(NamedTuple):
    """One of the 14 operations: the kernel that does it, its range of magnitudes and its one fixed magnitude."""

    name: str
    kernel: str | None = None
    start: float = 0.0
    end: float = 0.0
    fixed: float = 0.0
    either_side: bool = False  # whether the fixed magnitude gets a random sign


# The ranges are FixMatch's; the fixed magnitudes are level 10 of AHIL's published code, where images are 32 pixels wide
# and nothing reaches solarize's threshold. Posterize is rounded to whole bits: from 3.5 to 8.5 makes 4, ..., 8 bits
# equally likely.
OPERATIONS = (
    Operation("identity"),
    Operation("autocontrast", "autocontrast"),
    Operation("equalize", "equalize"),
    Operation("rotate", "affine", -30, 30, fixed=30, either_side=True),
    Operation("solarize", "tone", 256, 0, fixed=256),
    Operation("color", "enhance", 0.05, 0.95, fixed=1.9),
    Operation("contrast", "enhance", 0.05, 0.95, fixed=1.9),
    Operation("brightness", "enhance", 0.05, 0.95, fixed=1.9),
    Operation("sharpness", "sharpness", 0.05, 0.95, fixed=1.9),
    Operation("shear_x", "affine", -0.3, 0.3, fixed=0.3, either_side=True),
    Operation("shear_y", "affine", -0.3, 0.3, fixed=0.3, either_side=True),
    Operation("translate_x", "affine", -0.3, 0.3, fixed=10 / 32, either_side=True),
    Operation("translate_y", "affine", -0.3, 0.3, fixed=10 / 32, either_side=True),
    Operation("posterize", "tone", 3.5, 8.5, fixed=4),
)
NUMBER = {operation.name: number for number, operation in enumerate(OPERATIONS)}
START, END, FIXED = (
    torch.tensor([getattr(operation, field) for operation in OPERATIONS], dtype=torch.float64)
    for field in ("start", "end", "fixed")
)
EITHER_SIDE = torch.tensor([operation.either_side for operation in OPERATIONS])
RUNS_ON = {name: torch.tensor([operation.kernel == name for operation in OPERATIONS]) for name in KERNELS}


@dataclass(frozen=True)
class Parameters:
    """A record of tensors, which may hold other records and tuples of them."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same record with `function` applied to every tensor in it."""

        def apply(value: Any) -> Any:
            if isinstance(value, Tensor):
                return function(value)
            if isinstance(value, Parameters):
                return value.map(function)
            return tuple(apply(item) for item in value) if isinstance(value, tuple) else value

        return replace(self, **{field.name: apply(getattr(self, field.name)) for field in fields(self)})

    def to(self, device: torch.device | str) -> Self:
        """The same record on a device, without waiting for it."""
        return self.map(lambda tensor: move(tensor, torch.device(device)))


@dataclass(frozen=True)
class Drawn(Parameters):
    """Parameters as drawn: every tensor has one row an image."""

    def select(self, index: Tensor | slice) -> Self:
        """The parameters of some images, such as one rank's share of the step."""
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True)
class WeakParameters(Drawn):
    """Each image's shift in whole pixels (the view's pixel (0, 0) is the image's (down, right)) and its flip."""

    down: Tensor  # [N] int64
    right: Tensor  # [N] int64
    flip: Tensor  # [N] bool
    size: tuple[int, int]

    @classmethod
    def draw(
        cls, num_images: int, size: tuple[int, int], generator: torch.Generator, *, flip: bool, translate: bool
    ) -> Self:
        """A random crop out of the reflect-padded image and, if asked for, a flip with p 0.5 or a translation.

        The translation, up to 12.5 % of the side, is one more shift, and the pixels it needs are reflected as well.
        """

        def shift(reach: int) -> Tensor:
            return torch.randint(-reach, reach + 1, (num_images,), generator=generator)

        down, right = (shift(min(4, math.ceil(side / 8), side - 1)) for side in size)
        if translate:
            down, right = (crop + shift(side // 8) for crop, side in zip((down, right), size, strict=True))
        flipped = torch.rand(num_images, generator=generator) < 0.5 if flip else torch.zeros(num_images).bool()
        return cls(down, right, flipped, size)


@dataclass(frozen=True)
class Group(Parameters):
    """The images that go through one kernel together, and its arguments."""

    kernel: str
    members: Tensor  # [n] int64
    arguments: tuple[Tensor, ...]


@dataclass(frozen=True)
class StrongPlan(Parameters):
    """The weak view, the groups in the order in which they run, and the square to cut out."""

    weak: WeakParameters
    groups: tuple[Group, ...]
    cut_centre: Tensor  # [N, 2]
    cut_side: Tensor  # [N]


@dataclass(frozen=True)
class StrongParameters(Drawn):
    """A weak draw of its own, two operations with their magnitudes, and a square to cut out."""

    weak: WeakParameters
    operation: Tensor  # [N, 2] int64, into OPERATIONS
    magnitude: Tensor  # [N, 2] float64, in the operation's own unit; translations as a share of the side
    applied: Tensor  # [N, 2] bool
    cut_centre: Tensor  # [N, 2] int64, row and column
    cut_side: Tensor  # [N] int64

    @classmethod
    def draw(cls, weak: WeakParameters, generator: torch.Generator, *, fixed: bool) -> Self:
        """Draw what comes after the weak view; `fixed` takes the fixed magnitudes and the largest square."""
        num_images, (height, width) = len(weak.flip), weak.size
        shape, largest_cut = (num_images, NUM_LAYERS), min(height, width) // 2
        operation = torch.randint(len(OPERATIONS), shape, generator=generator)
        level = torch.rand(shape, generator=generator, dtype=torch.float64)
        applied = torch.rand(shape, generator=generator) < 0.5
        centre = [torch.randint(side, (num_images,), generator=generator) for side in (height, width)]
        if fixed:
            sign = torch.where(EITHER_SIDE[operation] & (level < 0.5), -1.0, 1.0)
            magnitude, cut_side = sign * FIXED[operation], torch.full((num_images,), largest_cut)
        else:
            magnitude = START[operation] + level * (END - START)[operation]
            cut_side = torch.randint(largest_cut + 1, (num_images,), generator=generator)
        return cls(weak, operation, magnitude, applied, torch.stack(centre, 1), cut_side)

    def prepare(self) -> StrongPlan:
        """Group the images by kernel, layer after layer, and turn magnitudes into the kernels' arguments."""
        groups = []
        for operation, magnitude, applied in zip(self.operation.T, self.magnitude.T, self.applied.T, strict=True):
            for kernel, runs in RUNS_ON.items():
                members = (applied & runs[operation]).nonzero().flatten()
                if len(members):
                    arguments = _arguments(kernel, operation[members], magnitude[members], self.weak.size)
                    groups.append(Group(kernel, members, arguments))
        return StrongPlan(self.weak, tuple(groups), self.cut_centre, self.cut_side)


def _arguments(kernel: str, operation: Tensor, magnitude: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:
    """What the kernel needs to know of each image. Operations that share a kernel differ in these numbers only."""

    def drawn(name: str, otherwise: float = 0.0) -> Tensor:
        return torch.where(operation == NUMBER[name], magnitude, otherwise)

    match kernel:
        case "tone":
            step = 2 ** (8 - drawn("posterize", 8.0).round())
            return (256 - step).to(torch.uint8), drawn("solarize", 256.0).ceil().to(torch.int16)
        case "enhance":
            grey, mean = (operation == NUMBER[name] for name in ("color", "contrast"))
            return magnitude.float(), grey.float(), mean.float()
        case "sharpness":
            return (magnitude.float(),)
        case "affine":
            height, width = size
            angle = drawn("rotate").deg2rad()
            cos, sin = angle.cos(), angle.sin()
            x = (1 - cos) * width / 2 + sin * height / 2 + drawn("translate_x") * width
            y = (1 - cos) * height / 2 - sin * width / 2 + drawn("translate_y") * height
            across, down = drawn("shear_x") - sin, drawn("shear_y") + sin
            matrix = [cos, across, x + (cos + across) / 2, down, cos, y + (down + cos) / 2]  # pixel centres at halves
            return ((65536 * torch.stack(matrix, 1)).round().to(torch.int32),)
    return ()
