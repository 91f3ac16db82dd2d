"""TensorBoard, where it is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


class TensorBoardLog:
    """One scalar a metric and epoch; does nothing where TensorBoard is not installed."""

    def __init__(self, directory: Path, first_epoch: int) -> None:
        self.writer = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(str(directory), purge_step=first_epoch)

    def write(self, row: Mapping[str, float]) -> None:
        if self.writer is not None:
            for name, value in row.items():
                if name != "epoch":
                    self.writer.add_scalar(name, value, int(row["epoch"]))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
