"""Learning features without labels, as a job whose run others start from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from torchllp.bags import Bags
from torchllp.config import Config
from torchllp.data.image_cache import Progress
from torchllp.engine.precision import pick_device
from torchllp.engine.train import Row
from torchllp.errors import LLPError
from torchllp.job import Job, create, initialize, log, log_data
from torchllp.run import Run
from torchllp.supervision import load_instances


class Pretraining(Job):
    """All that pre-training needs: instances by themselves, and a model whose head stays as it is."""

    learns_classes = False

    @classmethod
    def prepare(
        cls,
        config: Config,
        bags: Bags | None = None,
        *,
        first_weights: bool = True,
        progress: Progress | None = None,
    ) -> "Pretraining":
        pick_device(config.compute.device)
        if config.freeze:
            raise LLPError("`freeze` leaves nothing to pre-train: leave it out")
        data = replace(load_instances(config, progress), class_names=())
        if len(data.train) < 2:
            raise LLPError(f"{data.name}: one instance has none to be compared with")
        bags = Bags.unlabelled(len(data.train))
        model, method = create(config, num_classes=bags.num_classes, input_shape=data.input_shape)
        if not [name for name, _ in model.named_parameters() if not name.startswith("head.")]:
            raise LLPError(f"the model {config.model.name!r} has no features to learn: take 'mlp'")
        if config.init_from is not None and first_weights:
            initialize(model, Run.open(Path(config.init_from)), data)
        return cls(config, data, bags, bags, None, model, method)

    def write_inputs(self, run: Run) -> None:
        """Nothing: there are no bags."""

    def log(self) -> None:
        log.info("%s on %s: %d instances", self.config.method.name, self.data.name, len(self.data.train))
        log_data(self.data)
        if self.config.model.name == "resnet50" and pick_device(self.config.compute.device).type == "cpu":
            log.info("a ResNet-50 takes hours on a CPU; --model small-cnn takes minutes")
        if self.config.init_from is not None:
            log.info("first weights from %s", self.config.init_from)

    def describe(self, model: nn.Module) -> dict[str, Any]:
        return {}

    def summarize(self, rows: list[Row], chosen: Row | None) -> dict[str, Any]:
        return {
            "num_instances": len(self.data.train),
            "epoch": {"last": rows[-1]["epoch"]},
            "metrics": {"last": rows[-1]},
        }
