"""Torchvision's residual networks, with a stem for small images and untrained."""

from typing import Literal

from torch import nn
from torchvision.models import resnet18, resnet50

from torchllp.errors import LLPError
from torchllp.models.classifier import Classifier


class ResNet(Classifier):
    """ResNet-18 or -50.

    The ``small`` stem is a 3x3 convolution that keeps the image's size; ``imagenet`` is the original, which divides
    it by four.
    """

    def __init__(
        self,
        depth: Literal[18, 50],
        *,
        in_channels: int,
        num_classes: int,
        stem: Literal["small", "imagenet"] = "small",
    ) -> None:
        body = {18: resnet18, 50: resnet50}[depth](weights=None)
        if stem == "small":
            body.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
            body.set_submodule("maxpool", nn.Identity())
        elif stem == "imagenet":
            body.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        else:
            raise LLPError(f"a ResNet's stem is 'small' or 'imagenet', not {stem!r}")
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does
        head = nn.Linear(body.fc.in_features, num_classes)
        body.set_submodule("fc", nn.Identity())
        super().__init__(body, head)
