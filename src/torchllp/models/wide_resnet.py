"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from itertools import pairwise

from torch import Tensor, nn

from torchllp.errors import LLPError
from torchllp.models.classifier import Classifier

SLOPE = 0.1  # of every leaky ReLU


class WideResNet(Classifier):
    """WRN-depth-width: three groups of pre-activation blocks, ``16, 32, 64`` times ``width`` channels wide.

    ``bn_momentum`` is PyTorch's: the weight of the new batch in the running statistics.
    """

    def __init__(self, depth: int, width: int, *, in_channels: int, num_classes: int, bn_momentum: float = 0.1) -> None:
        if depth < 10 or depth % 6 != 4:
            raise LLPError(f"a wide ResNet's depth is 6n + 4 (10, 16, 22, 28, ...), not {depth}")
        if width < 1:
            raise LLPError(f"a wide ResNet's width is at least 1, not {width}")
        channels = [16, 16 * width, 32 * width, 64 * width]
        blocks = [
            _Block(before if i == 0 else after, after, stride if i == 0 else 1, bn_momentum)
            for (before, after), stride in zip(pairwise(channels), [1, 2, 2], strict=True)
            for i in range((depth - 4) // 6)
        ]
        body = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
            *blocks,
            nn.BatchNorm2d(channels[-1], momentum=bn_momentum),
            nn.LeakyReLU(SLOPE),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        super().__init__(body, nn.Linear(channels[-1], num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_in", nonlinearity="leaky_relu")
        nn.init.zeros_(self.head.bias)


class _Block(nn.Module):
    """Two 3x3 convolutions, each after batch norm and leaky ReLU, and a way past them.

    The way past is the identity; where the shape changes, a 1x1 convolution of the activated input. That is so in every
    group, as in the original wide ResNet, while common FixMatch code takes the activated input in the first group only.
    """

    def __init__(self, before: int, after: int, stride: int, bn_momentum: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before, momentum=bn_momentum)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after, momentum=bn_momentum)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.activation = nn.LeakyReLU(SLOPE)
        same_shape = before == after and stride == 1
        self.shortcut = None if same_shape else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(x))
        past = x if self.shortcut is None else self.shortcut(y)
        return past + self.conv2(self.activation(self.norm2(self.conv1(y))))
