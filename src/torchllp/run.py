"""The run directory: create, open, lock, read and write. Nothing else builds a path in it."""

import fcntl
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from torchllp.config import Config
from torchllp.engine.checkpoint import load_state, save_state
from torchllp.engine.frozen import Frozen
from torchllp.engine.train import Row, State
from torchllp.errors import LLPError
from torchllp.files import write_atomically
from torchllp.methods import METHODS
from torchllp.models import create_model

FORMAT_VERSION = 1
CHECKPOINT_VERSION = 2


class Run:
    """A directory that holds everything of one training.

    ``config.toml`` (resolved), ``env.json``, ``bags.npz``, ``data.json`` (what the inputs were),
    ``metrics.jsonl`` (a line an epoch), ``train.log``, ``checkpoints/last.pt`` (to resume from; with
    ``checkpoints/frozen.safetensors`` where only the head is trained), and at the end ``model.safetensors`` with
    ``model.json``, ``summary.json``, and what is made of it: ``curves.png`` and ``report.html``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.env_file = path / "env.json"
        self.bags_file = path / "bags.npz"
        self.data_file = path / "data.json"
        self.metrics_file = path / "metrics.jsonl"
        self.log_file = path / "train.log"
        self.checkpoint_file = path / "checkpoints" / "last.pt"
        self.frozen_file = path / "checkpoints" / "frozen.safetensors"
        self.model_file = path / "model.safetensors"
        self.description_file = path / "model.json"
        self.summary_file = path / "summary.json"
        self.curves_file = path / "curves.png"
        self.report_file = path / "report.html"
        self.confusion_file = path / "confusion.png"
        self.export_paths = {
            "onnx": path / "model.onnx",
            "torch-export": path / "model.pt2",
            "safetensors": path / "exported",
        }
        self.profile_file = path / "profile.json"
        self.tensorboard_directory = path / "tensorboard"
        self.lock_file = path / ".lock"

    @classmethod
    def open(cls, path: Path) -> "Run":
        """The run at ``path``, which must be one."""
        run = cls(path)
        if not run.config_file.is_file():
            raise LLPError(f"{path}: not a run (there is no config.toml in it)")
        return run

    @classmethod
    def check_free(cls, path: Path, *, overwrite: bool = False) -> None:
        """Raise unless a run can be created at ``path``; only a run is ever overwritten."""
        if path.exists() and (not path.is_dir() or any(not entry.name.startswith(".") for entry in path.iterdir())):
            if not overwrite:
                raise LLPError(
                    f"{path}: there is something here already: take another directory, "
                    "continue it (--resume) or replace it (--overwrite)"
                )
            cls.open(path)

    @classmethod
    def create(cls, path: Path, config: Config, *, overwrite: bool = False) -> "Run":
        """A new run at ``path``; a directory that holds anything is refused, or emptied if it is a run."""
        cls.check_free(path, overwrite=overwrite)
        run = cls(path)
        if run.config_file.is_file():
            with run.lock():  # never a run at work
                run._empty()
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(run.config_file, config.to_toml().encode())
        return run

    def _empty(self) -> None:
        """Remove all that is in the run, the config last: if this is cut off, what is left can still be overwritten."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self.config_file:
                entry.unlink()
        self.config_file.unlink()

    @property
    def config(self) -> Config:
        return Config.read(self.config_file)

    def config_with(self, data_dir: Path | None) -> Config:
        """The run's config, with the files of its data set in another directory if one is given."""
        return Config.layered(self.config.model_dump(), {"data": {"data_dir": str(data_dir)}} if data_dir else {})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; refused while another one does."""
        with open(self.lock_file, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LLPError(f"{self.path}: another process is at work in this run") from None
            yield

    @property
    def is_finished(self) -> bool:
        return self.summary_file.is_file()

    @property
    def summary(self) -> dict[str, Any]:
        if not self.is_finished:
            raise LLPError(f"{self.path}: the run is not finished: continue it by {self.how_to_resume}")
        return read_json(self.summary_file)

    @property
    def how_to_resume(self) -> str:
        """The command that continues this run."""
        command = "train" if METHODS.load(self.config.method.name).learns_classes else "pretrain"
        return f"llp {command} --resume {shlex.quote(str(self.path))}"

    def metrics(self) -> list[Row]:
        """One row an epoch; a last line that was not written to its end is none."""
        text = self.metrics_file.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @staticmethod
    def write_json(path: Path, content: dict[str, Any]) -> None:
        """Write one of the run's JSON files."""
        write_atomically(path, (json.dumps({"format_version": FORMAT_VERSION} | content, indent=2) + "\n").encode())

    def save_frozen(self, frozen: Frozen) -> None:
        """Write the part that is not trained."""
        self.frozen_file.parent.mkdir(exist_ok=True)
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in frozen.model.state_dict().items()}
        write_atomically(self.frozen_file, save(tensors | {"mean": frozen.mean, "std": frozen.std}))

    def load_frozen(self, model: nn.Module) -> Frozen:
        """The part that is not trained, read into ``model``."""
        tensors = read_tensors(self.frozen_file)
        mean, std = tensors.pop("mean"), tensors.pop("std")
        model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
        return Frozen(model, mean, std)

    def save_checkpoint(self, state: State, metrics_bytes: int) -> None:
        """Write the state after an epoch, and how much of ``metrics.jsonl`` belongs to it."""
        self.checkpoint_file.parent.mkdir(exist_ok=True)
        content = {"format_version": CHECKPOINT_VERSION, "state": state, "metrics_bytes": metrics_bytes}
        save_state(self.checkpoint_file, content)

    def load_checkpoint(self) -> tuple[State | None, int]:
        """The last state and its part of ``metrics.jsonl``; nothing before the first epoch is whole."""
        if not self.checkpoint_file.is_file():
            return None, 0
        saved = load_state(self.checkpoint_file)
        _check_format(self.checkpoint_file, saved, CHECKPOINT_VERSION)
        return saved["state"], saved["metrics_bytes"]

    @property
    def description(self) -> dict[str, Any]:
        """What the trained model is and was trained on: the content of ``model.json``."""
        if not self.description_file.is_file():
            raise LLPError(f"{self.path}: the run has no model yet: continue it by {self.how_to_resume}")
        return read_json(self.description_file)

    def load_model(self, weights: Literal["chosen", "last"] | None = None, *, raw: bool = False) -> nn.Module:
        """The trained model in evaluation mode: what ``model.safetensors`` holds, or other weights of the run.

        ``weights`` is the epoch, ``raw`` the weights as optimised in place of their moving average.
        """
        description = self.description
        model = new_model(description["model"])
        if weights is None and not raw:
            model.load_state_dict(read_tensors(self.model_file))
            return model.eval()
        state, _ = self.load_checkpoint()
        trained = _weights(state, weights or description["weights"]["epoch_is"], raw=raw)
        if self.config.freeze:
            return self.load_frozen(model).classifier(trained)
        model.load_state_dict(trained)
        return model.eval()


def new_model(made_of: Mapping[str, Any]) -> nn.Module:
    """A model, not yet trained, as a description says: its name, options, classes and the shape of an instance."""
    return create_model(
        made_of["name"],
        num_classes=made_of["num_classes"],
        input_shape=tuple(made_of["input_shape"]),
        **made_of["options"],
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise LLPError(f"{path}: cannot be read ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LLPError(f"{path}: cannot be read ({error})") from error
    _check_format(path, content)
    return content


def _check_format(path: Path, content: dict[str, Any], known: int = FORMAT_VERSION) -> None:
    if content.get("format_version") != known:
        raise LLPError(f"{path}: its format is {content.get('format_version')}, and {known} is known here")


def _weights(state: State | None, epoch: str, *, raw: bool) -> dict[str, Tensor]:
    """One of the four sets of weights that a state holds."""
    if state is None:
        raise LLPError("the run has no checkpoint, so only the weights in model.safetensors are left")
    if epoch == "chosen":
        if state["chosen"] is None:
            raise LLPError("no epoch was chosen in this run, because no bag was held out")
        return state["chosen"]["raw" if raw else "ema"]
    section, prefix = ("learner", "model.") if raw else ("ema", "module.")
    return {key.removeprefix(prefix): value for key, value in state[section].items() if key.startswith(prefix)}
