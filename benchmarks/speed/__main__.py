"""How fast it is: ratios of two things that are run turn by turn in one process, on one thread.

    python -m benchmarks.speed [--only a,b]

measures (all, or those that are named)

    a  AHIL's losses and weights against a loop over the bags, and against one bare cross-entropy
    b  weak and strong views against torchvision's per-image PIL pipeline
    c  the whole training step against the bare forward and backward of the network
    d  the whole training step against the way of the reference implementation
    e  growth of time and memory with bags, bag size and classes
    f  the start of `llp train`, and what an epoch costs besides its steps
    g  training on images and on rows read from a memory map against the same in memory
    h  pseudo-labels that meet the counts of their bags, as a share of the network's forward and backward
    i  steps in a process that takes and keeps memory as `llp` does, against one that gives it back

and writes `speed.json`, `speed.md`, `speed.png` and `growth.png` in `benchmarks/results`. Parts that were not measured
keep the rows they had.
"""

import argparse
import os
import time

import torch
from benchmarks.common import RESULTS
from benchmarks.speed import growth, labels, losses, memory, reference, results, runs, steps, streams, views

PARTS = {
    "a": ("AHIL's losses and weights, forward and backward", losses.measure),
    "b": ("Weak and strong views", views.measure),
    "c": ("The whole training step against the network alone", steps.measure),
    "d": ("The whole training step against the reference implementation's way", reference.measure),
    "e": ("Growth", growth.measure),
    "f": ("A run besides its steps", runs.measure),
    "g": ("Instances that are streamed", streams.measure),
    "h": ("Labels by assignment", labels.measure),
    "i": ("Memory that is kept, and in large pages", memory.measure),
}


def letters(text: str) -> list[str]:
    """The parts that are named, such as ``a,b``."""
    named = text.split(",")
    if unknown := [letter for letter in named if letter not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}: take some of {','.join(PARTS)}")
    return named


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=letters, default=list(PARTS), metavar="a,b", help="measure these parts alone")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says at each start that there is no GPU
    torch.set_num_threads(1)
    text = ""
    for letter in parser.parse_args().only:
        title, measure = PARTS[letter]
        print(f"{letter}. {title} ... ", end="", flush=True)
        started = time.perf_counter()
        text = results.save(RESULTS, letter, title, measure())
        print(f"{time.perf_counter() - started:.0f} s", flush=True)
    print("\n" + text)


if __name__ == "__main__":
    main()
