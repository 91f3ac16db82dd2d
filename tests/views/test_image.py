"""Image views: the same pixels as Pillow, per-image parameters, and nothing that waits for a device."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

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

from torchllp.views.image import ImageViews
from torchllp.views.parameters import KERNELS, NUMBER, OPERATIONS, Drawn, Parameters, StrongParameters, WeakParameters

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 23)]
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


def ours_and_pillow(drawn: StrongParameters, images: Tensor) -> tuple[Tensor, Tensor]:
    ours = raw_views(images.shape[1]).strong(images, only_operations(drawn).prepare())
    theirs = []
    for image, names, magnitudes, applied in zip(
        images, drawn.operation.tolist(), drawn.magnitude.tolist(), drawn.applied.tolist(), strict=True
    ):
        result = pillow(image)
        for name, magnitude, is_applied in zip(names, magnitudes, applied, strict=True):
            if is_applied:
                result = pillow_operation(OPERATIONS[name].name, result, magnitude)
        theirs.append(torch.from_numpy(np.array(result)).view(*image.shape[1:], -1).permute(2, 0, 1))
    return levels(ours), torch.stack(theirs).long()


def draw_one_operation(name: str, images: Tensor) -> StrongParameters:
    """Random magnitudes of one operation in the first layer, nothing in the second."""
    operation = torch.tensor([[NUMBER[name], NUMBER["identity"]]]).expand(len(images), 2)
    start, end = OPERATIONS[NUMBER[name]].start, OPERATIONS[NUMBER[name]].end
    magnitude = start + (end - start) * torch.rand(len(images), 2, generator=seeded(3), dtype=torch.float64)
    drawn = raw_views(images.shape[1]).draw_strong(len(images), images.shape, seeded())
    return replace(drawn, operation=operation, magnitude=magnitude, applied=torch.ones_like(drawn.applied))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COLOUR)
def test_colour_operations_equal_pillow_within_one_level(name: str, shape: tuple[int, int, int]) -> None:
    images = sample_images(shape)
    ours, theirs = ours_and_pillow(draw_one_operation(name, images), images)
    assert (ours - theirs).abs().max() <= 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_equal_pillow(name: str, shape: tuple[int, int, int]) -> None:
    images = random_images(200, shape)  # noise: a pixel from the wrong place shows
    ours, theirs = ours_and_pillow(draw_one_operation(name, images), images)
    assert (ours == theirs).double().mean() >= 0.999
    assert (ours != images).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_two_layers_in_drawn_order_equal_pillow(shape: tuple[int, int, int]) -> None:
    """Sorting by operation twice and back neither mixes up images nor the order of their two operations."""
    images = random_images(300, shape)
    ours, theirs = ours_and_pillow(raw_views(shape[0]).draw_strong(300, shape, seeded(5)), images)
    assert (ours == theirs).double().mean() >= 0.999


def test_fill_is_grey() -> None:
    images = torch.zeros(50, 1, 20, 20, dtype=torch.uint8)
    moved = levels(raw_views(1).strong(images, only_operations(draw_one_operation("translate_x", images)).prepare()))
    assert set(moved.unique().tolist()) == {0, 128}


def test_color_is_identity_on_grey_images() -> None:
    images = random_images(10, (1, 9, 9))
    ours, _ = ours_and_pillow(draw_one_operation("color", images), images)
    assert torch.equal(ours, images.long())


@pytest.mark.parametrize(("translate", "reach"), [(False, 4), (True, 8)])
@pytest.mark.parametrize("flip", [False, True])
def test_weak_is_a_crop_of_the_reflected_image(flip: bool, translate: bool, reach: int) -> None:
    images = random_images(60, (3, 32, 24))
    views = raw_views(3, flip=flip, translate=translate)
    drawn = views.draw_weak(60, images.shape, seeded())
    result = levels(views.weak(images, drawn.prepare()))
    for image, down, right, flipped, view in zip(
        images.numpy(), drawn.down.tolist(), drawn.right.tolist(), drawn.flip.tolist(), result.numpy(), strict=True
    ):
        padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
        crop = padded[:, reach + down :, reach + right :][:, :32, :24]
        assert np.array_equal(view, crop[:, :, ::-1] if flipped else crop)


@pytest.mark.parametrize(("side", "padding"), [(1, 0), (2, 1), (8, 1), (9, 2), (28, 4), (32, 4), (64, 4)])
def test_crop_offsets_cover_exactly_the_padding(side: int, padding: int) -> None:
    drawn = raw_views(1).draw_weak(2000, (1, side, side), seeded())
    assert set(drawn.down.tolist()) == set(drawn.right.tolist()) == set(range(-padding, padding + 1))


def test_translation_adds_an_eighth_of_the_side() -> None:
    drawn = raw_views(3, translate=True).draw_weak(5000, (3, 32, 40), seeded())
    assert set(drawn.down.tolist()) == set(range(-8, 9))
    assert set(drawn.right.tolist()) == set(range(-9, 10))


def test_flips_only_where_asked_for() -> None:
    assert not raw_views(1).draw_weak(1000, (8, 8), seeded()).flip.any()
    assert 0.45 < raw_views(1, flip=True).draw_weak(1000, (8, 8), seeded()).flip.double().mean() < 0.55


def test_strong_has_its_own_weak_draw() -> None:
    views, generator = raw_views(1, flip=True), seeded()
    weak, strong = views.draw_weak(500, (32, 32), generator), views.draw_strong(500, (32, 32), generator)
    assert (weak.down == strong.weak.down).double().mean() < 0.3  # 1 in 9 by chance
    assert 0.3 < (weak.flip == strong.weak.flip).double().mean() < 0.7


def test_operations_are_uniform_and_applied_half_the_time() -> None:
    drawn = raw_views(1).draw_strong(28_000, (28, 28), seeded())
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


def test_fixed_is_level_ten_and_always_applied() -> None:
    drawn = raw_views(1, randaugment="fixed").draw_strong(5000, (28, 28), seeded())
    seen = {op.name: set(drawn.magnitude[drawn.operation == NUMBER[op.name]].tolist()) for op in OPERATIONS}
    assert drawn.applied.all()
    assert seen["rotate"] == {-30, 30}
    assert all(sorted(seen[name]) == pytest.approx([-0.3, 0.3]) for name in GEOMETRIC[1:])
    assert all(seen[name] == {0.95} for name in ("color", "contrast", "brightness", "sharpness"))
    assert seen["solarize"] == {0}
    assert {round(bits) for bits in seen["posterize"]} == {8}


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 20), (1, 1, 1)])
def test_cutout_is_a_clipped_grey_square_up_to_half_the_image(shape: tuple[int, int, int]) -> None:
    views, images = raw_views(shape[0]), torch.zeros(400, *shape, dtype=torch.uint8)
    drawn = views.draw_strong(400, shape, seeded())
    assert set(drawn.cut_side.tolist()) == set(range(min(shape[1:]) // 2 + 1))
    only_cut = replace(drawn, weak=drawn.weak.map(torch.zeros_like), applied=torch.zeros_like(drawn.applied))
    result = levels(views.strong(images, only_cut.prepare()))
    for view, (row, column), side in zip(result, drawn.cut_centre.tolist(), drawn.cut_side.tolist(), strict=True):
        expected = torch.zeros(shape, dtype=torch.int64)
        top, left = row - side // 2, column - side // 2
        expected[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 128
        assert torch.equal(view, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_output_is_normalised_float_of_the_same_shape(shape: tuple[int, int, int]) -> None:
    mean, std = (0.49, 0.48, 0.45)[: shape[0]], (0.25, 0.24, 0.26)[: shape[0]]
    views, images = ImageViews(mean, std), random_images(7, shape)
    original = images.clone()
    weak = views.weak(images, views.draw_weak(7, shape, seeded()).prepare())
    strong = views.strong(images, views.draw_strong(7, shape, seeded()).prepare())
    expected = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(views.plain(images), expected, atol=1e-6)
    assert weak.dtype == strong.dtype == torch.float32
    assert weak.shape == strong.shape == images.shape
    assert torch.equal(images, original)


def both_views(views: ImageViews, images: Tensor, weak: WeakParameters, strong: StrongParameters) -> Tensor:
    return torch.stack([views.weak(images, weak.prepare()), views.strong(images, strong.prepare())], 1)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    num_images=st.integers(0, 40),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20)),
    randaugment=st.sampled_from(["random", "fixed"]),
)
def test_images_do_not_see_one_another(seed: int, num_images: int, shape: tuple[int, int, int], randaugment) -> None:
    """Permuted or selected images with their parameters give the permuted or selected result, bit for bit."""
    views = raw_views(shape[0], flip=True, translate=True, randaugment=randaugment)
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


def test_draws_do_not_depend_on_the_device_of_the_images() -> None:
    views = raw_views(3, flip=True)
    here, there = (
        tensors(views.draw_strong(50, torch.empty(50, 3, 32, 32, device=device).shape, seeded()))
        for device in ("cpu", "meta")
    )
    assert all(map(torch.equal, here, there))
    assert all(tensor.device.type == "cpu" for tensor in there)


@pytest.mark.parametrize("randaugment", ["random", "fixed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_views_on_a_device_never_wait_for_it(shape: tuple[int, int, int], randaugment) -> None:
    """Fake CUDA tensors raise on any host synchronisation, data-dependent shape and mix of devices."""
    views = raw_views(shape[0], flip=True, randaugment=randaugment)
    weak = views.draw_weak(256, shape, seeded()).prepare()
    strong = views.draw_strong(256, shape, seeded()).prepare()
    assert {group.kernel for layer in strong.layers for group in layer.groups} == set(KERNELS[1:])
    with FakeTensorMode() as mode:
        images = mode.from_tensor(random_images(256, shape)).to("cuda")
        weak, strong = (plan.map(mode.from_tensor).to("cuda") for plan in (weak, strong))
        for view in (views.weak(images, weak), views.strong(images, strong), views.plain(images)):
            assert view.device.type == "cuda"
            assert view.shape == images.shape
            with pytest.raises(DataDependentOutputException):
                view.sum().item()


def count_kernel_groups(num_images: int, shape: tuple[int, int, int]) -> Counter[str]:
    views, images = raw_views(shape[0], flip=True), random_images(num_images, shape)
    weak = views.draw_weak(num_images, shape, seeded()).prepare()
    strong = views.draw_strong(num_images, shape, seeded()).prepare()
    with profile() as profiler:
        views.weak(images, weak)
        views.strong(images, strong)
    return Counter(event.name for event in profiler.events() or () if event.name.startswith("view/"))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_a_handful_of_kernel_groups_whatever_the_batch(shape: tuple[int, int, int]) -> None:
    groups = count_kernel_groups(256, shape)
    assert {f"view/{kernel}" for kernel in KERNELS[1:]} < set(groups)
    assert groups.total() <= 20
    assert count_kernel_groups(1024, shape) == groups
