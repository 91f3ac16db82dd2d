"""One bag of 100,000 images, in the memory of a chunk: peak memory and time of a training step.

    python benchmarks/large_bag.py

A step of `dllp` and of `ahil` on one bag of 100,000 images (1 x 28 x 28, small CNN) in chunks of 1,000, beside a step
on a bag of 1,000 and one of 10,000, whole; the 100,000 images are in memory in each. Every one is a process of its own
with one thread; its memory is the system's peak during the step less what there was before (Linux alone says). Writes
`benchmarks/results/large_bag.md`. Takes about ten minutes.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from common import RESULTS

NUM_IMAGES, CHUNK = 100_000, 1_000
CASES = ((1_000, None), (10_000, None), (NUM_IMAGES, CHUNK))
"""Images in the bag, and in a chunk."""


def kilobytes(name: str) -> int:
    """A figure of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def step(method: str, bag_size: int, chunk_size: int | None) -> dict[str, float]:
    import torch

    from torchllp import Bags, Compute, Dataset, Instances, Recipe, create_method, create_model, train
    from torchllp.engine.train import Observer

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (NUM_IMAGES, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (NUM_IMAGES,), generator=generator)
    names = tuple(map(str, range(10)))
    data = Dataset.from_images("images", Instances(images, labels), class_names=names, flip=False)
    bag_of = np.where(np.arange(NUM_IMAGES) < bag_size, 0, -1)
    bags = Bags.from_labels(bag_of, labels.numpy(), class_names=names)
    model = create_model("small-cnn", num_classes=10, input_shape=(1, 28, 28))
    recipe = Recipe(epochs=1, steps_per_epoch=1, instances_per_step=bag_size)
    compute = Compute(device="cpu", threads=1, chunk_size=chunk_size)
    measured: dict[str, float] = {}

    class Clock(Observer):
        def on_start(self, epochs_done: int, num_epochs: int) -> None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            measured.update(before=kilobytes("VmRSS"), started=time.process_time())

        def on_step(self, epoch: int, step: int, num_steps: int) -> None:
            measured["megabytes"] = (kilobytes("VmHWM") - measured["before"]) / 1024
            measured["seconds"] = time.process_time() - measured["started"]

    train(model, create_method(method), data, bags, recipe=recipe, compute=compute, observer=Clock())
    return measured


def main() -> None:
    lines = [
        "| method | images in the bag | chunk | memory of the step, MB | CPU seconds | a thousand images, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method in ("dllp", "ahil"):
        for bag_size, chunk_size in CASES:
            command = [sys.executable, __file__, json.dumps([method, bag_size, chunk_size])]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found = json.loads(result.stdout.splitlines()[-1])
            chunk = "whole" if chunk_size is None else f"{chunk_size:,}"
            seconds = found["seconds"]
            numbers = f"{found['megabytes']:.0f} | {seconds:.1f} | {seconds / bag_size * 1000:.2f}"
            lines.append(f"| {method} | {bag_size:,} | {chunk} | {numbers} |")
            print(lines[-1], flush=True)
    (RESULTS / "large_bag.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(step(*json.loads(sys.argv[1]))))
    else:
        main()
