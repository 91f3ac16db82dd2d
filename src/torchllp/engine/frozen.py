"""A classifier of which only the head is trained, on the features of all instances, computed once."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchllp.config import Compute, Recipe
from torchllp.data.dataset import Dataset, Instances
from torchllp.engine.evaluate import predict_features
from torchllp.engine.precision import pick_device
from torchllp.engine.process import borrowed_process
from torchllp.engine.views import views_of
from torchllp.models.features import check_head, head_of
from torchllp.models.linear import LinearModel


@dataclass(frozen=True, eq=False)
class Frozen:
    """A model that stays as it is but for its last linear layer, and how its features were standardised."""

    model: nn.Module
    mean: Tensor
    """Of each feature over the training instances, ``[D]``."""
    std: Tensor

    def new_head(self) -> LinearModel:
        """An untrained head for standardised features."""
        return LinearModel(in_features=len(self.mean), num_classes=_head(self.model).out_features)

    def classifier(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The whole classifier of raw instances, with the weights of a trained head in place of its own.

        ``head((f - mean) / std)`` is a linear function of ``f`` too, which is what the classifier gets.
        """
        whole = deepcopy(self.model).cpu().eval()
        weight, bias = weights["head.weight"].cpu().double(), weights["head.bias"].cpu().double()
        weight = weight / self.std.double()
        _head(whole).load_state_dict({"weight": weight.float(), "bias": (bias - weight @ self.mean.double()).float()})
        return whole


def freeze(model: nn.Module, data: Dataset, compute: Compute | None = None) -> tuple[Frozen, Dataset]:
    """``model`` with all but its head frozen, and ``data`` with its standardised features in place of the instances.

    >>> from torchllp import Bags, create_method, create_model, load_dataset, train
    >>> digits = load_dataset("digits")
    >>> frozen, features = freeze(create_model("small-cnn", num_classes=10, input_shape=(1, 8, 8)), digits)
    >>> features.train.inputs.shape
    torch.Size([1437, 64])
    >>> bags = Bags.random(digits.train.labels.numpy(), bag_size=16, seed=0)
    >>> outcome = train(frozen.new_head(), create_method("dllp"), features, bags, recipe=Recipe(epochs=1))
    >>> frozen.classifier(outcome.model.state_dict())(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    """
    compute = compute or Compute()
    device = pick_device(compute.device)
    views = views_of(data, Recipe())
    model = deepcopy(model).to(device).eval().requires_grad_(False)
    with borrowed_process(device, compute.threads):
        check_head(model, views.plain(data.train.inputs[:4].to(device)))
        train = predict_features(model, views, data.train.inputs)
        mean, std = train.mean(0), train.std(0, correction=0)
        std = torch.where(std > 1e-5 * mean.abs(), std, 1.0)  # a feature that hardly changes is only shifted
        test = data.test
        if test is not None and test is not data.train:
            test = Instances((predict_features(model, views, test.inputs) - mean) / std, test.labels)
    instances = Instances((train - mean) / std, data.train.labels)
    test = instances if data.test is data.train else test
    features = replace(data, train=instances, test=test, mean=(), std=(), encoder=None, flip=False, translate=False)
    return Frozen(model.cpu(), mean, std), features


def _head(model: nn.Module) -> nn.Linear:
    head = head_of(model)
    assert head is not None  # it was checked
    return head
