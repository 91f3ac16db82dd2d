"""A small convolutional network for a CPU."""

from torch import nn

from torchllp.errors import LLPError
from torchllp.models.classifier import Classifier


class SmallCNN(Classifier):
    """Three blocks of 3x3 convolution, batch norm, leaky ReLU and pooling, for images of 4x4 or more.

    The blocks have ``width`` channels, twice as many, and four times as many.
    """

    def __init__(self, *, in_channels: int, num_classes: int, width: int = 16) -> None:
        if width < 1:
            raise LLPError(f"a small CNN's width is at least 1, not {width}")
        body = nn.Sequential(
            *_block(in_channels, width),
            # The largest values first: the ReLU, which keeps their order, then has a quarter of the work.
            *(nn.MaxPool2d(2), nn.LeakyReLU(0.1)),
            *_block(width, 2 * width),
            *(nn.MaxPool2d(2), nn.LeakyReLU(0.1)),
            *_block(2 * width, 4 * width),
            *(nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1)),
            nn.Flatten(),
        )
        super().__init__(body, nn.Linear(4 * width, num_classes))


def _block(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
