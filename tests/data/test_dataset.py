import pytest
import torch

from torchllp import Dataset, Instances, LLPError


def test_statistics_of_colour_images() -> None:
    images = torch.randint(256, (3000, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 51
    data = Dataset.from_images("noise", Instances(images), class_names=["a", "b"], flip=True)
    scaled = images.double() / 255
    assert data.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
    assert data.std[:2] == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist()[:2])
    assert data.std[2] == 1.0  # no contrast
    assert data.flip and data.input_shape == (3, 4, 5) and data.test is None


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 2, 8, 8), (0, 1, 8, 8), (4,)])
def test_what_is_not_images_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LLPError, match=r"images are uint8 values of shape .*, not torch.uint8 of shape"):
        Dataset.from_images("x", Instances(torch.zeros(shape, dtype=torch.uint8)), class_names=["a", "b"])
    with pytest.raises(LLPError, match=r"not torch.float32"):
        Dataset.from_images("x", Instances(torch.zeros(2, 1, 8, 8)), class_names=["a", "b"])
