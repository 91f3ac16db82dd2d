"""Contrastive views: the same pixels as torchvision, its distributions, and nothing that waits for a device."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.profiler import profile
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as theirs

from torchllp.errors import LLPError
from torchllp.views import contrastive as ours
from torchllp.views.contrastive import ContrastiveDraw, ContrastiveViews
from torchllp.views.image import ImageViews
from torchllp.views.views import Views

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 23), (3, 40, 9), (1, 1, 1)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(num_images: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(256, (num_images, *shape), generator=seeded(seed), dtype=torch.uint8)


def unit_views(num_channels: int, *, flip: bool = False) -> ContrastiveViews:
    """Views whose normalisation leaves the levels from 0 to 1, as torchvision has them."""
    return ContrastiveViews(mean=(0.0,) * num_channels, std=(1.0,) * num_channels, flip=flip)


def one_by_one(function: Callable[..., Tensor], images: Tensor, *columns: Tensor) -> Tensor:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return torch.stack([function(image, *row) for image, row in zip(images, rows, strict=True)])


def their_crop(image: Tensor, start: list[float], length: list[float], flip: bool, antialias: bool = True) -> Tensor:
    (top, left), (height, width) = map(int, start), map(int, length)
    view = theirs.resized_crop(image, top, left, height, width, [*image.shape[1:]], antialias=antialias)
    return theirs.horizontal_flip(view) if flip else view


def their_grey(image: Tensor, grey: bool) -> Tensor:
    return theirs.rgb_to_grayscale(image, num_output_channels=len(image)) if grey else image


def their_view(image: Tensor, *row: Any) -> Tensor:
    drawn = dict(zip((field.name for field in fields(ContrastiveDraw)), row, strict=True))
    view = their_crop(image, drawn["start"], drawn["length"], drawn["flip"])
    view = theirs.adjust_brightness(view, drawn["brightness"])
    view = theirs.adjust_contrast(view, drawn["contrast"])
    view = theirs.adjust_saturation(view, drawn["saturation"])
    return their_grey(theirs.adjust_hue(view, drawn["hue"]), drawn["grey"])


def columns_of(drawn: ContrastiveDraw) -> list[Tensor]:
    return [getattr(drawn, field.name) for field in fields(drawn)]


def draw(num_images: int, shape: tuple[int, ...], seed: int = 0, *, flip: bool = True) -> ContrastiveDraw:
    return unit_views(shape[0], flip=flip).draw_weak(num_images, shape, seeded(seed))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 84, 84)])
def test_crops_equal_torchvision(shape: tuple[int, int, int], antialias: bool) -> None:
    """Boxes are scaled up, or not at all, so to antialias changes nothing."""
    images, drawn = random_images(200, shape), draw(200, shape)
    expected = one_by_one(
        lambda *row: their_crop(*row, antialias=antialias), images / 255, drawn.start, drawn.length, drawn.flip
    )
    crops = ours.resized_crop(images, drawn.start, drawn.length, drawn.flip) / 255
    torch.testing.assert_close(crops, expected, rtol=0, atol=2e-5)  # noise: neighbours may differ by 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for shape in SHAPES for name in ("brightness", "contrast", "saturation", "hue")[: 1 + shape[0]]],
)
def test_colours_equal_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    noise, drawn = random_images(200, shape), getattr(draw(200, shape), name)
    for images in (noise, noise // 8 + 90, (noise > 128) * 255, noise[:, :1].expand_as(noise)):
        expected = one_by_one(getattr(theirs, f"adjust_{name}"), images / 255, drawn)
        result = getattr(ours, f"adjust_{name}")(images.float(), drawn) / 255
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)


def test_grey_equals_torchvision() -> None:
    images = random_images(50, (3, 9, 9)) / 255
    torch.testing.assert_close(ours.luma(images), theirs.rgb_to_grayscale(images))


@pytest.mark.parametrize("shape", SHAPES)
def test_both_views_are_crop_jitter_and_grey_in_this_order(shape: tuple[int, int, int]) -> None:
    views, images, generator = unit_views(shape[0], flip=True), random_images(300, shape), seeded(5)
    weak, strong = (make(300, images.shape, generator) for make in (views.draw_weak, views.draw_strong))
    for view, drawn in ((views.weak(images, weak), weak), (views.strong(images, strong.prepare()), strong)):
        torch.testing.assert_close(view, one_by_one(their_view, images / 255, *columns_of(drawn)), rtol=0, atol=5e-5)


def test_nothing_drawn_leaves_the_image_as_it_is() -> None:
    images, drawn = random_images(100, (3, 32, 32)), draw(100, (3, 32, 32))
    one, zero = torch.ones(100), torch.zeros(100)
    nothing = ContrastiveDraw(
        torch.zeros(100, 2), torch.full((100, 2), 32.0), zero.bool(), one, one, one, zero, zero.bool()
    )
    views = unit_views(3)
    torch.testing.assert_close(views.weak(images, nothing), views.plain(images), rtol=0, atol=1e-6)
    changed = 0
    for field in fields(drawn):
        view = views.weak(images, replace(nothing, **{field.name: getattr(drawn, field.name)}))
        changed += field.name != "length" and (view - views.plain(images)).abs().max() > 0.1
    assert changed == 7  # and the length comes with its start


def test_grey_images_have_three_equal_channels() -> None:
    images, drawn = random_images(200, (3, 8, 8)), draw(200, (3, 8, 8))
    view = unit_views(3).weak(images, drawn)
    assert torch.equal((view == view[:, :1]).flatten(1).all(1), drawn.grey)


def test_one_channel_takes_brightness_and_contrast_only() -> None:
    images, drawn = random_images(100, (1, 8, 8)), draw(100, (1, 8, 8))
    plainer = replace(drawn, saturation=drawn.saturation * 0, hue=drawn.hue * 0, grey=~drawn.grey)
    assert torch.equal(unit_views(1).weak(images, drawn), unit_views(1).weak(images, plainer))


def quantiles(values: Tensor) -> Tensor:
    return torch.quantile(values.double(), torch.linspace(0, 1, 5, dtype=torch.float64))


def test_boxes_have_the_areas_and_ratios_of_simclr() -> None:
    """On large images, where whole pixels do not matter; boxes below 3/4 of the area always fit."""
    drawn = draw(40_000, (3, 1000, 1000))
    (height, width), (top, left) = drawn.length.T, drawn.start.T
    area, ratio = height * width / 1000**2, (width / height).log()
    assert area.min() > 0.199 and area.max() <= 1 and ratio.abs().max() < math.log(4 / 3) + 0.005
    small = area < 0.75
    torch.testing.assert_close(quantiles(area[small]), torch.linspace(0.2, 0.75, 5).double(), rtol=0, atol=0.01)
    expected = torch.linspace(-math.log(4 / 3), math.log(4 / 3), 5).double()
    torch.testing.assert_close(quantiles(ratio[small]), expected, rtol=0, atol=0.01)
    for start, length in ((top, height), (left, width)):
        place = (start / (1000 - length))[length < 900]
        torch.testing.assert_close(quantiles(place), torch.linspace(0, 1, 5).double(), rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (17, 23), (9, 40), (3, 2), (1, 1), (1, 20)])
def test_boxes_are_distributed_as_those_of_torchvision(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    transform, image = v2.RandomResizedCrop(size, scale=(0.2, 1.0)), torch.zeros(3, *size)
    expected = [transform.make_params([image]) for _ in range(4000)]
    drawn = draw(40_000, (3, *size))
    assert ((drawn.length >= 1) & (drawn.start >= 0) & (drawn.start + drawn.length <= torch.tensor(size))).all()
    for column, name in zip((*drawn.start.T, *drawn.length.T), ("top", "left", "height", "width"), strict=True):
        values = torch.tensor([row[name] for row in expected])
        share, their_share = (x.long().bincount(minlength=41) / len(x) for x in (column, values))
        assert (share - their_share).abs().max() < 0.035  # 4 standard deviations of the 4,000


def test_a_box_that_never_fits_is_the_central_one() -> None:
    """A fifth of 9 x 90 pixels in the widest box that may be is 11 rows high."""
    drawn = draw(200, (1, 9, 90))
    assert {*map(tuple, drawn.length.tolist())} == {(9, 12)} and {*map(tuple, drawn.start.tolist())} == {(0, 39)}


def test_colours_are_drawn_as_in_simclr() -> None:
    drawn = draw(40_000, (3, 8, 8))
    jittered = drawn.brightness != 1
    assert abs(jittered.double().mean() - 0.8) < 0.01
    assert abs(drawn.grey.double().mean() - 0.2) < 0.01
    assert abs(drawn.flip.double().mean() - 0.5) < 0.01
    for factor in (drawn.brightness, drawn.contrast, drawn.saturation, 4 * drawn.hue + 1):
        assert (factor[~jittered] == 1).all()
        torch.testing.assert_close(quantiles(factor[jittered]), torch.linspace(0.6, 1.4, 5).double(), rtol=0, atol=0.02)


def test_all_that_is_drawn_is_independent() -> None:
    views, generator = unit_views(3, flip=True), seeded()
    both = [make(40_000, (32, 32), generator) for make in (views.draw_weak, views.draw_strong)]
    jittered = (both[0].brightness != 1) & (both[1].brightness != 1)
    columns = []
    for drawn in both:
        room = 33 - drawn.length
        height, width = drawn.length.T
        columns += [height * width, width / height, *((drawn.start + 0.5) / room).T]
        columns += [drawn.flip, drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue, drawn.grey]
    correlation = torch.corrcoef(torch.stack([column[jittered].double() for column in columns]))
    assert (correlation - torch.eye(len(columns))).abs().max() < 0.03


def test_flips_only_where_asked_for() -> None:
    assert not draw(1000, (1, 8, 8), flip=False).flip.any()


def test_draws_are_a_function_of_the_seed() -> None:
    for first, again, other in zip(*(columns_of(draw(100, (3, 32, 32), seed)) for seed in (1, 1, 2)), strict=True):
        assert torch.equal(first, again) and not torch.equal(first, other)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    num_images=st.integers(0, 40),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20)),
    flip=st.booleans(),
)
def test_images_do_not_see_one_another(seed: int, num_images: int, shape: tuple[int, int, int], flip: bool) -> None:
    """Permuted or selected images with their parameters give the permuted or selected result."""
    views, images, generator = unit_views(shape[0], flip=flip), random_images(num_images, shape, seed), seeded(seed)
    drawn = views.draw_weak(num_images, shape, generator)
    view = views.weak(images, drawn)
    for index in (torch.randperm(num_images, generator=generator), slice(num_images // 3, None, 2)):
        selected = views.weak(images[index], drawn.select(index))
        torch.testing.assert_close(selected, view[index], rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_output_is_normalised_float_of_the_same_shape(shape: tuple[int, int, int]) -> None:
    mean, std = (0.49, 0.48, 0.45)[: shape[0]], (0.25, 0.24, 0.26)[: shape[0]]
    views, images = ContrastiveViews(mean, std), random_images(7, shape)
    original, drawn = images.clone(), draw(7, shape)
    view = views.weak(images, drawn)
    expected = v2.functional.normalize(unit_views(shape[0]).weak(images, drawn), [*mean], [*std])
    torch.testing.assert_close(view, expected)
    assert view.dtype == torch.float32 and view.shape == images.shape
    assert torch.equal(views.plain(images), ImageViews(mean, std).plain(images))
    assert torch.equal(images, original)


def test_one_mean_is_not_spread_over_three_channels() -> None:
    with pytest.raises(LLPError, match="images of 3 channels need a mean and a std for each of them"):
        unit_views(1).weak(random_images(2, (3, 4, 4)), draw(2, (3, 4, 4)))


@pytest.mark.usefixtures("_no_fake_normalisation")
@pytest.mark.parametrize("shape", SHAPES)
def test_views_on_a_device_never_wait_for_it(shape: tuple[int, int, int]) -> None:
    """Fake CUDA tensors raise on any host synchronisation, data-dependent shape and mix of devices."""
    views: Views = unit_views(shape[0], flip=True)
    weak, strong = views.draw_weak(64, shape, seeded()), views.draw_strong(64, shape, seeded()).prepare()
    with FakeTensorMode() as mode:
        images = mode.from_tensor(random_images(64, shape)).to("cuda")
        weak, strong = (drawn.map(mode.from_tensor).to("cuda") for drawn in (weak, strong))
        for view in (views.weak(images, weak), views.strong(images, strong), views.plain(images)):
            assert view.device.type == "cuda"
            assert view.shape == images.shape
            with pytest.raises(DataDependentOutputException):
                view.sum().item()


def count_calls(num_images: int, shape: tuple[int, int, int]) -> int:
    views, images, drawn = unit_views(shape[0]), random_images(num_images, shape), draw(num_images, shape)
    views.plain(images)  # fills the cache
    with profile() as profiler:
        views.weak(images, drawn)
    return sum(event.name.startswith("aten::") for event in profiler.events() or ())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_as_many_kernels_whatever_the_batch(shape: tuple[int, int, int]) -> None:
    assert 0 < count_calls(256, shape) == count_calls(16, shape)
