"""What a run costs besides its steps: to start, and to evaluate, log and save each epoch."""

import gzip
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from benchmarks.speed.measure import Row, Times, overhead, ratios, turn_by_turn

from torchllp import Config
from torchllp.data.fashion_mnist import PUBLISHED
from torchllp.engine.train import Observer
from torchllp.job import start

IMPORT = "`import torch` alone"
EPOCH, EVALUATION, SAVING = "the whole epoch", "evaluation", "log and checkpoint"


def cpu_seconds_of_children() -> float:
    """CPU time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def start_up(run: Path) -> Callable[[], None]:
    """`llp train` on the digits as a process, up to the line that it prints after a first epoch of one step."""
    arguments = ["--run", str(run), "--overwrite", "--threads", "1", "--epochs", "2", "--steps-per-epoch", "1"]
    command = [sys.executable, "-m", "torchllp", "train", *arguments]

    def call() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            shown = []
            for line in process.stdout:
                shown.append(line)
                if line.startswith("epoch "):
                    process.kill()
                    return
        raise RuntimeError(f"no epoch was seen of {' '.join(command)}:\n{''.join(shown)}")

    return call


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


class Phases(Observer):
    """Seconds of each epoch and of its parts. The disk is waited for, so this is not CPU time."""

    def __init__(self) -> None:
        self.times: Times = {name: [] for name in (EPOCH, EVALUATION, SAVING)}

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self.started = perf_counter()

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        self.steps = perf_counter() - self.started

    def on_epoch(self, row: dict[str, float], state: dict[str, Any]) -> None:
        whole = perf_counter() - self.started
        if row["epoch"] > 1:  # the first warms up
            parts = (whole, row["seconds"] - self.steps, whole - row["seconds"])
            for seconds, part in zip(self.times.values(), parts, strict=True):
                seconds.append(part)
        self.started = perf_counter()


def epochs_of(config: dict[str, Any], run: Path, repeats: int) -> Times:
    compute = {"device": "cpu", "threads": 1}
    phases = Phases()
    start(Config.layered(config, {"recipe": {"epochs": repeats + 1}, "compute": compute}), run, observer=phases)
    return phases.times


def write_random_images(folder: Path, num_train: int, num_test: int) -> None:
    """Files like those of Fashion-MNIST."""
    generator = np.random.default_rng(0)
    for name in PUBLISHED:
        number = num_train if name.startswith("train") else num_test
        shape, levels = ((number, 28, 28), 256) if "images" in name else ((number,), 10)
        header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
        values = generator.integers(levels, size=shape, dtype=np.uint8)
        (folder / name).write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1))


def share(name: str, times: Times, part: str) -> Row:
    seconds = {"ours": median(times[part]), EPOCH: median(times[EPOCH])}
    return Row(f"{part}, {name}", EPOCH, ratios(times, part, EPOCH), limit=None, seconds=seconds)


def start_row(folder: Path, repeats: int) -> Row:
    calls = {"ours": start_up(folder / "start"), IMPORT: import_torch}
    times = turn_by_turn(calls, repeats, clock=cpu_seconds_of_children)
    return overhead("`llp train` to the end of a first epoch of one step", times, IMPORT)


def epoch_rows(folder: Path, repeats: int, num_images: int) -> list[Row]:
    """Of the digits, and of images like those of Fashion-MNIST, with a test image for six training images as there."""
    write_random_images(folder, num_images, num_images // 6)
    images = {
        "data": {"dataset": "fashion-mnist", "data_dir": str(folder), "bag_size": 64},
        "recipe": {"instances_per_step": 1024},
    }
    rows = []
    for words, config in {"1,437 digits": {}, f"{num_images:,} images of 28 x 28": images}.items():
        times = epochs_of(config, folder / words.replace(",", ""), repeats)
        rows += [share(words, times, part) for part in (EVALUATION, SAVING)]
    return rows


def measure(repeats: int = 5, num_images: int = 6000) -> list[Row]:
    with TemporaryDirectory() as folder:
        return [start_row(Path(folder), repeats), *epoch_rows(Path(folder), repeats, num_images)]
