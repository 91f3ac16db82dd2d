"""Accuracy on scikit-learn's digits: AHIL, its unweighted form, other methods and full supervision, over several seeds.

    python benchmarks/digits.py

trains everything by the default recipe (two processes of one thread each, about eleven minutes on two cores) and writes
`benchmarks/results/digits.csv` (a row a run) and `benchmarks/results/digits.md` (mean and deviation).
"""

import csv
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

from torchllp.config import Config, Named
from torchllp.job import start

METHODS = {
    "ahil": Named(name="ahil"),
    "ahil, unweighted": Named(name="ahil", options={"weigh_bags": False, "weigh_instances": False}),
    "dllp": Named(name="dllp"),
    "rot": Named(name="rot"),
    "softmatch": Named(name="softmatch"),
    "supervised": Named(name="supervised"),
}
SEEDS = range(5)
BAG_SIZES = (16, 64)
EPOCHS = ("last", "chosen", "oracle")
RESULTS = Path(__file__).parent / "results"


def accuracy(label: str, bag_size: int, seed: int) -> dict[str, float]:
    """Test accuracy in percent at the last, the chosen and the oracle epoch of one run."""
    config = Config(method=METHODS[label], seed=seed)
    config = Config.layered(config.model_dump(), {"data": {"bag_size": bag_size}, "compute": {"threads": 1}})
    with tempfile.TemporaryDirectory() as folder:
        summary = start(config, Path(folder, "run")).summary
    return {epoch: 100 * summary["accuracy"][epoch] for epoch in EPOCHS} | {"steps": summary["steps"]}


def main() -> None:
    jobs = [(label, bag_size, seed) for bag_size in BAG_SIZES for label in METHODS for seed in SEEDS]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(accuracy, *zip(*jobs, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / "digits.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["method", "bag_size", "seed", "steps", *EPOCHS])
        for job, result in zip(jobs, results, strict=True):
            table.writerow([*job, result["steps"], *(f"{result[epoch]:.2f}" for epoch in EPOCHS)])

    lines = ["| method | bag size | last epoch | chosen epoch | oracle epoch | n |", "|---|---:|---:|---:|---:|---:|"]
    for bag_size in BAG_SIZES:
        for label in METHODS:
            runs = [result for job, result in zip(jobs, results, strict=True) if job[:2] == (label, bag_size)]
            cells = [f"{mean(r[e] for r in runs):.2f} ± {stdev(r[e] for r in runs):.2f}" for e in EPOCHS]
            lines.append(f"| {label} | {bag_size} | {' | '.join(cells)} | {len(runs)} |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "digits.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
