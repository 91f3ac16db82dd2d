"""Image views: the same pixels as Pillow, per-image parameters, and nothing that waits for a device."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.profiler import profile

from torchllp.errors import LLPError
from torchllp.views import image as image_module
from torchllp.views.image import ImageViews
from torchllp.views.operations import KERNELS
from torchllp.views.parameters import (
    END,
    NUMBER,
    OPERATIONS,
    START,
    Drawn,
    Parameters,
    StrongParameters,
    WeakParameters,
)

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 23)]
MODES = ["random", "fixed"]
COLOUR = ["autocontrast", "equalize", "solarize", "color", "contrast", "brightness", "sharpness", "posterize"]
GEOMETRIC = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(num_images: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(256, (num_images, *shape), generator=seeded(seed), dtype=torch.uint8)


def raw_views(num_channels: int, **options) -> ImageViews:
    """Views whose normalisation leaves the levels 0 ... 255 as they are, up to rounding."""
    return ImageViews(mean=(0.0,) * num_channels, std=(1 / 255,) * num_channels, **options)


def levels(view: Tensor) -> Tensor:
    return view.round().to(torch.int64)


def sample_images(shape: tuple[int, int, int]) -> Tensor:
    """Random, low-contrast, two-level, constant, gradient and (repeated to the size) real digit images."""
    channels, height, width = shape
    noise = random_images(20, shape)
    gradient = torch.linspace(0, 255, width).expand(20, channels, height, width) * torch.rand(20, channels, 1, 1)
    constant = torch.arange(0, 256, 51)[:, None, None, None].expand(-1, *shape)
    digits = torch.from_numpy(load_digits().images[: 20 * channels] * 15.9375)  # 0 ... 16 to 0 ... 255
    repeats = (1, 1, -(-height // 8), -(-width // 8))
    digits = digits.view(20, channels, 8, 8).repeat(repeats)[..., :height, :width]
    kinds = [noise, noise // 8 + 90, (noise > 200) * 77 + 100, constant, gradient, digits]
    return torch.cat([kind.to(torch.uint8) for kind in kinds])


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy())


def pillow_operation(name: str, image: Image.Image, magnitude: float) -> Image.Image:
    width, height = image.size
    grey = 128 if image.mode == "L" else (128, 128, 128)

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=grey)

    operations: dict[str, Callable[[], Image.Image]] = {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "rotate": lambda: image.rotate(magnitude, Image.Resampling.NEAREST, fillcolor=grey),
        "solarize": lambda: ImageOps.solarize(image, magnitude),
        "color": lambda: ImageEnhance.Color(image).enhance(magnitude),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(magnitude),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(magnitude),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(magnitude),
        "shear_x": lambda: affine(1, magnitude, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, magnitude, 1, 0),
        "translate_x": lambda: affine(1, 0, magnitude * width, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, magnitude * height),
        "posterize": lambda: ImageOps.posterize(image, round(magnitude)),
    }
    return operations[name]()


def only_operations(drawn: StrongParameters) -> StrongParameters:
    """The same draw without shift, flip and cutout."""
    return replace(drawn, weak=drawn.weak.map(torch.zeros_like), cut_side=torch.zeros_like(drawn.cut_side))


def numpy_crop(images: Tensor, drawn: WeakParameters) -> Tensor:
    """The weak view, image by image."""
    reach = 8
    views = []
    for image, down, right, flip in zip(images.numpy(), drawn.down, drawn.right, drawn.flip, strict=True):
        padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
        view = padded[:, reach + down :, reach + right :][:, : image.shape[1], : image.shape[2]]
        views.append(view[:, :, ::-1] if flip else view)
    return torch.from_numpy(np.stack(views))


def pillow_operations(images: Tensor, drawn: StrongParameters) -> Tensor:
    """The two operations, image by image."""
    views = []
    for image, numbers, magnitudes, applied in zip(
        images, drawn.operation.tolist(), drawn.magnitude.tolist(), drawn.applied.tolist(), strict=True
    ):
        view = pillow(image)
        for number, magnitude, is_applied in zip(numbers, magnitudes, applied, strict=True):
            if is_applied:
                view = pillow_operation(OPERATIONS[number].name, view, magnitude)
        views.append(torch.from_numpy(np.array(view)).view(*image.shape[1:], -1).permute(2, 0, 1))
    return torch.stack(views)


def cut_squares(images: Tensor, drawn: StrongParameters) -> Tensor:
    """The cutout, image by image."""
    images = images.clone()
    for image, (row, column), side in zip(images, drawn.cut_centre.tolist(), drawn.cut_side.tolist(), strict=True):
        top, left = row - side // 2, column - side // 2
        image[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 128
    return images


def ours_and_pillow(drawn: StrongParameters, images: Tensor) -> tuple[Tensor, Tensor]:
    ours = raw_views(images.shape[1]).strong(images, only_operations(drawn).prepare())
    return levels(ours), pillow_operations(images, drawn).long()


def draw_one_operation(name: str, images: Tensor, randaugment: str = "random") -> StrongParameters:
    """Magnitudes of one operation in the first layer, nothing in the second."""
    operation = torch.tensor([[NUMBER[name], NUMBER["identity"]]]).expand(len(images), 2)
    start, end, fixed, either_side = OPERATIONS[NUMBER[name]][2:]
    level = torch.rand(len(images), 2, generator=seeded(3), dtype=torch.float64)
    magnitude = start + (end - start) * level
    if randaugment == "fixed":
        magnitude = fixed * (2 * level.round() - 1) if either_side else torch.full_like(level, fixed)
    drawn = raw_views(images.shape[1]).draw_strong(len(images), images.shape, seeded())
    return replace(drawn, operation=operation, magnitude=magnitude, applied=torch.ones_like(drawn.applied))


@pytest.mark.parametrize("randaugment", MODES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COLOUR)
def test_colour_operations_equal_pillow_within_one_level(
    name: str, shape: tuple[int, int, int], randaugment: str
) -> None:
    """Also at the fixed enhance factor 1.9, where Pillow clips what leaves 0 ... 255."""
    images = sample_images(shape)
    ours, theirs = ours_and_pillow(draw_one_operation(name, images, randaugment), images)
    assert (ours - theirs).abs().max() <= 1


@pytest.mark.parametrize("randaugment", MODES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_equal_pillow(name: str, shape: tuple[int, int, int], randaugment: str) -> None:
    images = random_images(200, shape)  # noise: a pixel from the wrong place shows
    ours, theirs = ours_and_pillow(draw_one_operation(name, images, randaugment), images)
    assert (ours == theirs).double().mean() >= 0.999
    assert (ours != images).any()


@pytest.mark.parametrize("randaugment", MODES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 17, 23)])
def test_strong_is_crop_operations_and_cutout_in_this_order(shape: tuple[int, int, int], randaugment) -> None:
    """Grouping by kernel mixes up neither the images nor the order of what is done to each."""
    views, images = raw_views(shape[0], flip=True, randaugment=randaugment), random_images(300, shape)
    drawn = views.draw_strong(300, shape, seeded(5))
    expected = cut_squares(pillow_operations(numpy_crop(images, drawn.weak), drawn), drawn)
    assert (levels(views.strong(images, drawn.prepare())) == expected).double().mean() >= 0.999


def test_fill_is_grey() -> None:
    images = torch.zeros(50, 1, 20, 20, dtype=torch.uint8)
    moved = levels(raw_views(1).strong(images, only_operations(draw_one_operation("translate_x", images)).prepare()))
    assert set(moved.unique().tolist()) == {0, 128}


def test_color_is_identity_on_grey_images() -> None:
    images = random_images(10, (1, 9, 9))
    ours, _ = ours_and_pillow(draw_one_operation("color", images), images)
    assert torch.equal(ours, images.long())


@pytest.mark.parametrize("options", [{}, {"flip": True}, {"translate": True}])
def test_weak_is_a_crop_of_the_reflected_image(options: dict[str, bool]) -> None:
    images, views = random_images(60, (3, 32, 24)), raw_views(3, **options)
    drawn = views.draw_weak(60, images.shape, seeded())
    assert torch.equal(levels(views.weak(images, drawn)), numpy_crop(images, drawn).long())


@pytest.mark.parametrize(("side", "padding"), [(1, 0), (2, 1), (8, 1), (9, 2), (28, 4), (32, 4), (64, 4)])
def test_crop_offsets_cover_exactly_the_padding(side: int, padding: int) -> None:
    drawn = raw_views(1).draw_weak(2000, (1, side, side), seeded())
    assert set(drawn.down.tolist()) == set(drawn.right.tolist()) == set(range(-padding, padding + 1))


def test_crop_offsets_are_uniform() -> None:
    drawn = raw_views(1).draw_weak(20_000, (1, 32, 32), seeded())
    for shift in (drawn.down, drawn.right):
        assert torch.allclose((shift + 4).bincount() / 20_000, torch.tensor(1 / 9), atol=0.01)


def test_all_that_is_drawn_is_independent() -> None:
    """No two drawn columns go together, of the strong view and of a weak view drawn before from the same generator."""
    views, generator = raw_views(1, flip=True), seeded()
    weak, strong = (draw(20_000, (32, 32), generator) for draw in (views.draw_weak, views.draw_strong))
    span = (END - START)[strong.operation]
    level = torch.where(span == 0, 0.5, (strong.magnitude - START[strong.operation]) / span)
    crops = [column for view in (weak, strong.weak) for column in (view.down, view.right, view.flip)]
    pairs = [strong.operation, level, strong.applied, strong.cut_centre]
    columns = [*crops, *(column for pair in pairs for column in pair.T), strong.cut_side]
    correlation = torch.corrcoef(torch.stack([column.double() for column in columns]))
    assert (correlation - torch.eye(len(columns))).abs().max() < 0.03


def test_translation_adds_an_eighth_of_the_side() -> None:
    drawn = raw_views(3, translate=True).draw_weak(5000, (3, 32, 40), seeded())
    assert set(drawn.down.tolist()) == set(range(-8, 9))
    assert set(drawn.right.tolist()) == set(range(-9, 10))


def test_flips_only_where_asked_for() -> None:
    assert not raw_views(1).draw_weak(1000, (8, 8), seeded()).flip.any()
    assert 0.45 < raw_views(1, flip=True).draw_weak(1000, (8, 8), seeded()).flip.double().mean() < 0.55


@pytest.mark.parametrize("randaugment", MODES)
def test_operations_are_uniform_and_applied_half_the_time(randaugment) -> None:
    drawn = raw_views(1, randaugment=randaugment).draw_strong(28_000, (28, 28), seeded())
    share = drawn.operation.flatten().bincount(minlength=14) / drawn.operation.numel()
    assert len(OPERATIONS) == 14
    assert torch.allclose(share, torch.tensor(1 / 14), atol=0.005)
    assert abs(drawn.applied.double().mean() - 0.5) < 0.01
    assert abs((drawn.operation[:, 0] == drawn.operation[:, 1]).double().mean() - 1 / 14) < 0.01  # with replacement


RANGES = {"rotate": 30, **dict.fromkeys(GEOMETRIC[1:], 0.3)}


@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS])
def test_magnitudes_fill_fixmatch_ranges(name: str) -> None:
    drawn = raw_views(1).draw_strong(30_000, (28, 28), seeded())
    magnitude = drawn.magnitude[drawn.operation == NUMBER[name]]
    if name == "posterize":
        share = magnitude.round().long().bincount(minlength=9) / len(magnitude)
        assert torch.allclose(share, torch.tensor([0, 0, 0, 0, 0.2, 0.2, 0.2, 0.2, 0.2]), atol=0.03)
        return
    low, high = {"solarize": (0, 256), "identity": (0, 0), "autocontrast": (0, 0), "equalize": (0, 0)}.get(
        name, (-RANGES[name], RANGES[name]) if name in RANGES else (0.05, 0.95)
    )
    quantiles = torch.quantile(magnitude, torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64))
    expected = torch.linspace(low, high, 5, dtype=torch.float64)
    assert torch.allclose(quantiles, expected, atol=0.03 * (high - low))
    assert low <= quantiles[0] and quantiles[-1] <= high


def test_fixed_is_level_ten_of_the_published_code() -> None:
    drawn = raw_views(1, randaugment="fixed").draw_strong(20_000, (28, 28), seeded())
    seen = {op.name: set(drawn.magnitude[drawn.operation == NUMBER[op.name]].tolist()) for op in OPERATIONS}
    assert seen["rotate"] == {-30, 30}
    assert seen["shear_x"] == seen["shear_y"] == {-0.3, 0.3}
    assert seen["translate_x"] == seen["translate_y"] == {-10 / 32, 10 / 32}
    assert all(seen[name] == {1.9} for name in ("color", "contrast", "brightness", "sharpness"))
    assert seen["solarize"] == {256} and seen["posterize"] == {4}
    assert set(drawn.cut_side.tolist()) == {14}
    has_side = torch.isin(drawn.operation, torch.tensor([NUMBER[name] for name in GEOMETRIC]))
    assert abs((drawn.magnitude[has_side] > 0).double().mean() - 0.5) < 0.02
    first, second = (drawn.magnitude[has_side.all(1)] > 0).T
    assert abs((first == second).double().mean() - 0.5) < 0.04  # each layer has a side of its own


def test_fixed_solarize_changes_nothing() -> None:
    images = random_images(10, (3, 9, 9))
    ours, _ = ours_and_pillow(draw_one_operation("solarize", images, "fixed"), images)
    assert torch.equal(ours, images.long())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 20), (1, 1, 1)])
def test_cutout_is_a_clipped_grey_square_up_to_half_the_image(shape: tuple[int, int, int]) -> None:
    views, images = raw_views(shape[0]), torch.zeros(400, *shape, dtype=torch.uint8)
    drawn = views.draw_strong(400, shape, seeded())
    assert set(drawn.cut_side.tolist()) == set(range(min(shape[1:]) // 2 + 1))
    only_cut = replace(drawn, weak=drawn.weak.map(torch.zeros_like), applied=torch.zeros_like(drawn.applied))
    assert torch.equal(levels(views.strong(images, only_cut.prepare())), cut_squares(images, drawn).long())


@pytest.mark.parametrize("shape", SHAPES)
def test_output_is_normalised_float_of_the_same_shape(shape: tuple[int, int, int]) -> None:
    mean, std = (0.49, 0.48, 0.45)[: shape[0]], (0.25, 0.24, 0.26)[: shape[0]]
    views, images = ImageViews(mean, std), random_images(7, shape)
    original = images.clone()
    weak = views.weak(images, views.draw_weak(7, shape, seeded()))
    strong = views.strong(images, views.draw_strong(7, shape, seeded()).prepare())
    expected = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(views.plain(images), expected, atol=1e-6)
    assert weak.dtype == strong.dtype == torch.float32
    assert weak.shape == strong.shape == images.shape
    assert torch.equal(images, original)


def test_normalisation_is_brought_to_a_device_once() -> None:
    once, again = (image_module._normalisation((0.125,), (0.875,), torch.device("cpu")) for _ in range(2))
    assert once[0] is again[0] and once[1] is again[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flip": True, "translate": True}, "set flip or translate, not both"),
        ({"randaugment": "strong"}, "randaugment is 'random' or 'fixed', not 'strong'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LLPError, match=message):
        raw_views(3, **options)


@pytest.mark.parametrize(("num_means", "num_stds"), [(1, 3), (3, 1), (1, 1)])
def test_one_mean_is_not_spread_over_three_channels(num_means: int, num_stds: int) -> None:
    views = ImageViews((0.5,) * num_means, (0.25,) * num_stds)
    with pytest.raises(LLPError, match="images of 3 channels need a mean and a std for each of them"):
        views.plain(random_images(2, (3, 4, 4)))


def both_views(views: ImageViews, images: Tensor, weak: WeakParameters, strong: StrongParameters) -> Tensor:
    return torch.stack([views.weak(images, weak), views.strong(images, strong.prepare())], 1)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    num_images=st.integers(0, 40),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20)),
    flip=st.booleans(),
    randaugment=st.sampled_from(MODES),
)
def test_images_do_not_see_one_another(
    seed: int, num_images: int, shape: tuple[int, int, int], flip: bool, randaugment
) -> None:
    """Permuted or selected images with their parameters give the permuted or selected result, bit for bit."""
    views = raw_views(shape[0], flip=flip, translate=not flip, randaugment=randaugment)
    images, generator = random_images(num_images, shape, seed), seeded(seed)
    weak, strong = views.draw_weak(num_images, shape, generator), views.draw_strong(num_images, shape, generator)
    result = both_views(views, images, weak, strong)
    for index in (torch.randperm(num_images, generator=generator), slice(num_images // 3, None, 2)):
        selected = both_views(views, images[index], weak.select(index), strong.select(index))
        assert torch.equal(selected, result[index])


def tensors(parameters: Parameters) -> list[Tensor]:
    found: list[Tensor] = []
    parameters.map(lambda tensor: found.append(tensor) or tensor)
    return found


def test_draws_are_a_function_of_the_seed() -> None:
    views = raw_views(3, flip=True)

    def draw(seed: int) -> list[Drawn]:
        generator = seeded(seed)
        return [views.draw_weak(100, (3, 32, 32), generator), views.draw_strong(100, (3, 32, 32), generator)]

    for first, again, other in zip(draw(1), draw(1), draw(2), strict=True):
        assert all(map(torch.equal, tensors(first), tensors(again)))
        assert not any(map(torch.equal, tensors(first), tensors(other)))


@pytest.mark.usefixtures("_no_fake_normalisation")
@pytest.mark.parametrize("randaugment", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_views_on_a_device_never_wait_for_it(shape: tuple[int, int, int], randaugment) -> None:
    """Fake CUDA tensors raise on any host synchronisation, data-dependent shape and mix of devices."""
    views = raw_views(shape[0], flip=True, randaugment=randaugment)
    weak = views.draw_weak(256, shape, seeded())
    strong = views.draw_strong(256, shape, seeded()).prepare()
    assert {group.kernel for group in strong.groups} == set(KERNELS)
    with FakeTensorMode() as mode:
        images = mode.from_tensor(random_images(256, shape)).to("cuda")
        weak, strong = (plan.map(mode.from_tensor).to("cuda") for plan in (weak, strong))
        for view in (views.weak(images, weak), views.strong(images, strong), views.plain(images)):
            assert view.device.type == "cuda"
            assert view.shape == images.shape
            with pytest.raises(DataDependentOutputException):
                view.sum().item()


def count_events(num_images: int, shape: tuple[int, int, int]) -> tuple[Counter[str], int]:
    """The labelled groups of kernels, and how many calls into torch both views take."""
    views, images = raw_views(shape[0], flip=True), random_images(num_images, shape)
    weak, strong = (draw(num_images, shape, seeded()) for draw in (views.draw_weak, views.draw_strong))
    plan = strong.prepare()
    views.plain(images)  # fills the cache
    with profile() as profiler:
        views.weak(images, weak)
        views.strong(images, plan)
    events = profiler.events() or ()
    outer = [event for event in events if not (event.cpu_parent and event.cpu_parent.name.startswith("aten::"))]
    groups = Counter(event.name for event in events if event.name.startswith("view/"))
    return groups, sum(event.name.startswith("aten::") for event in outer)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_a_handful_of_kernels_whatever_the_batch(shape: tuple[int, int, int]) -> None:
    (groups, calls), (more_groups, more_calls) = (count_events(num_images, shape) for num_images in (256, 1024))
    assert {f"view/{kernel}" for kernel in KERNELS} < set(groups)
    assert groups.total() <= 20
    assert more_groups == groups
    assert 0 < more_calls <= calls
