"""The random parameters of the image views: drawn on the CPU, one row an image, then grouped by operation.

Two stages, because a device must never be asked how many images drew an operation. The drawn form (`WeakParameters`,
`StrongParameters`) has one row an image and can be sliced; its `prepare()` sorts the images by operation on the CPU, so
that what goes to the device is a fixed plan (`WeakPlan`, `StrongPlan`) whose sizes are plain integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

NUM_LAYERS = 2  # RandAugment operations in a row


class Operation(NamedTuple):
    """One of the 14 operations: the kernel that does it, and its magnitude at level 0 and at level 10."""

    name: str
    kernel: str
    start: float = 0.0
    end: float = 0.0


# FixMatch's ranges. Solarize counts its threshold down, so level 10 inverts everything. Posterize is rounded to whole
# bits: from 3.5 to 8.5 makes 4, ..., 8 bits equally likely, and the end is 8 (a half is rounded to the even number).
OPERATIONS = (
    Operation("identity", "identity"),
    Operation("autocontrast", "autocontrast"),
    Operation("equalize", "equalize"),
    Operation("rotate", "affine", -30, 30),
    Operation("solarize", "tone", 256, 0),
    Operation("color", "enhance", 0.05, 0.95),
    Operation("contrast", "enhance", 0.05, 0.95),
    Operation("brightness", "enhance", 0.05, 0.95),
    Operation("sharpness", "sharpness", 0.05, 0.95),
    Operation("shear_x", "affine", -0.3, 0.3),
    Operation("shear_y", "affine", -0.3, 0.3),
    Operation("translate_x", "affine", -0.3, 0.3),
    Operation("translate_y", "affine", -0.3, 0.3),
    Operation("posterize", "tone", 3.5, 8.5),
)
NUMBER = {operation.name: number for number, operation in enumerate(OPERATIONS)}
START = torch.tensor([operation.start for operation in OPERATIONS], dtype=torch.float64)
END = torch.tensor([operation.end for operation in OPERATIONS], dtype=torch.float64)
KERNELS = tuple(dict.fromkeys(operation.kernel for operation in OPERATIONS))  # the identity comes first
KERNEL_NUMBER = torch.tensor([KERNELS.index(operation.kernel) for operation in OPERATIONS])


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
        """Move every tensor without waiting for the device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(frozen=True)
class Drawn(Parameters):
    """Parameters as drawn: every tensor has one row an image."""

    def select(self, index: Tensor | slice) -> Self:
        """The parameters of some images, such as one rank's share of the step."""
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True)
class WeakPlan(Parameters):
    """For each image, where in its own flat pixels each row of the view starts and which column each pixel is from."""

    row_starts: Tensor  # [N, H]
    columns: Tensor  # [N, W]


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

    def prepare(self) -> WeakPlan:
        """Resolve shift, reflection and flip to the pixel that each pixel of the view is taken from."""

        def source(shift: Tensor, side: int) -> Tensor:
            position = (torch.arange(side) + shift[:, None]).abs()
            return (side - 1) - (side - 1 - position).abs()

        rows, columns = (source(*pair) for pair in zip((self.down, self.right), self.size, strict=True))
        return WeakPlan(rows * self.size[1], torch.where(self.flip[:, None], columns.flip(1), columns))


@dataclass(frozen=True)
class Group(Parameters):
    """The images `start` to `stop` of a sorted batch, that all go through one kernel, with its arguments."""

    kernel: str
    start: int
    stop: int
    arguments: tuple[Tensor, ...]


@dataclass(frozen=True)
class Layer(Parameters):
    """One operation an image: bring the batch into this order, then run each group on its own stretch."""

    order: Tensor  # [N]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class StrongPlan(Parameters):
    """The weak view's plan, the layers in turn, the order that undoes their sorting, and the rectangle to cut out."""

    weak: WeakPlan
    layers: tuple[Layer, ...]
    restore: Tensor  # [N]
    cut_rows: Tensor  # [N, H] uint8, 255 where the rectangle is
    cut_columns: Tensor  # [N, W] uint8


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
        """Draw what comes after the weak view; `fixed` puts every magnitude at level 10 and always applies it.

        At level 10 a rotation, shear or translation is as far as it goes, to a random side.
        """
        num_images, (height, width) = len(weak.flip), weak.size
        shape = (num_images, NUM_LAYERS)
        operation = torch.randint(len(OPERATIONS), shape, generator=generator)
        level = torch.rand(shape, generator=generator, dtype=torch.float64)
        applied = torch.rand(shape, generator=generator) < 0.5
        start, end = START[operation], END[operation]
        if fixed:
            level = torch.where(start == -end, level.round(), 1.0)
            applied = torch.ones_like(applied)
        centre = [torch.randint(side, (num_images,), generator=generator) for side in (height, width)]
        cut_side = torch.randint(min(height, width) // 2 + 1, (num_images,), generator=generator)
        return cls(weak, operation, start + level * (end - start), applied, torch.stack(centre, 1), cut_side)

    def prepare(self) -> StrongPlan:
        """Sort the images by kernel for each layer, and turn magnitudes into the kernels' arguments."""
        layers = []
        restore = torch.arange(len(self.operation))
        for operation, magnitude, applied in zip(self.operation.T, self.magnitude.T, self.applied.T, strict=True):
            kernel = torch.where(applied, KERNEL_NUMBER[operation], 0)
            order = kernel.argsort(stable=True)
            stops = kernel.bincount(minlength=len(KERNELS)).cumsum(0).tolist()
            groups = []
            for name, start, stop in zip(KERNELS[1:], stops[:-1], stops[1:], strict=True):
                if start < stop:
                    members = order[start:stop]
                    arguments = _arguments(name, operation[members], magnitude[members], self.weak.size)
                    groups.append(Group(name, start, stop, arguments))
            layers.append(Layer(restore[order], tuple(groups)))
            restore = order.argsort()
        return StrongPlan(self.weak.prepare(), tuple(layers), restore, self._cut(0), self._cut(1))

    def _cut(self, axis: int) -> Tensor:
        """Which rows (axis 0) or columns (axis 1) of each image the square covers, clipped at the border."""
        distance = torch.arange(self.weak.size[axis]) - (self.cut_centre[:, axis] - self.cut_side // 2)[:, None]
        return ((distance >= 0) & (distance < self.cut_side[:, None])).to(torch.uint8) * 255


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
