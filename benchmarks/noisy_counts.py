"""What noisy counts cost, and what it saves to say how noisy they are: digits and Bank marketing.

    python benchmarks/noisy_counts.py
    python benchmarks/noisy_counts.py --data-dir DIR

DIR has `tabular/` with the file of Bank, of which 3,000 random rows are trained on; without it the digits are all. Bags
have 8 to 32 random rows. Their counts are reported with Gaussian noise (standard deviation 2), with discrete Laplace
noise (epsilon 0.5, a deviation of 2.8), or rounded to fives. `dllp` is trained on them with

- the reports plugged in as if they were exact: as proportions (`mean`) and as counts (`count`),
- what is known of the noise: a weight a bag (`mean`), and the sum over all true counts (`count`),
- the exact counts, for comparison.

Everything else is the same: the default network and recipe for tables, but 30 epochs, and a learning rate of 3e-3 for
the digits, which are few. Held-out bags, reported in the same way, choose the epoch: by `bag_kl` for `mean`, by
`count_score` for `count`. Two processes of one thread each write `benchmarks/results/noisy_counts.csv` (a row a run)
and `noisy_counts.md`. Finished runs are kept in `runs/benchmark-noisy-counts`, so that the command goes on where it was
stopped; remove that directory to begin anew.
"""

import argparse
import csv
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from tables import bank

from torchllp import Bags, Compute, Config, Dataset, create_method, create_model, make_bags, train
from torchllp.bags import default_held_out
from torchllp.data.own import OwnData, read_own
from torchllp.data.readers import Columns
from torchllp.files import write_atomically
from torchllp.presets import TABLE, preset

SEEDS = range(5)
NUM_TRAIN = 3000
RESULTS = Path(__file__).parent / "results"
RUNS = Path("runs/benchmark-noisy-counts")
NOISES = {"gaussian": 2.0, "laplace": 0.5, "rounding": 5.0}
WAYS = (("mean", "plugged in"), ("mean", "known noise"), ("count", "plugged in"), ("count", "known noise"))


def digits(folder: Path) -> OwnData:
    pixels, labels = load_digits(return_X_y=True)
    is_test = np.random.default_rng(0).random(len(labels)) < 0.25

    def table(rows: np.ndarray) -> dict[str, Any]:
        columns = {f"pixel {j}": column for j, column in enumerate(pixels[rows].T)}
        return columns | {"digit": [str(label) for label in labels[rows]]}

    return read_own(Columns(label="digit"), instances=table(~is_test), test=table(is_test))


DATA = {"digits": digits, "Bank": bank}


def some_of(data: Dataset) -> Dataset:
    """The same data set with a random part of the training rows."""
    rows = np.random.default_rng(0).permutation(len(data.train))[:NUM_TRAIN]
    part = replace(data.train, inputs=data.train.inputs[rows], labels=data.train.labels[rows])
    return replace(data, train=part)


def reported(exact: Bags, noise: str, seed: int) -> np.ndarray:
    """The counts as they are reported, ``[B, C]``."""
    rng, scale = np.random.default_rng([1, seed]), NOISES[noise]
    if noise == "gaussian":
        return exact.counts + rng.normal(0, scale, exact.counts.shape)
    if noise == "laplace":  # the difference of two geometric numbers
        first, second = rng.geometric(1 - np.exp(-scale), (2, *exact.counts.shape))
        return exact.counts + first - second
    return scale * np.round(exact.counts / scale)


def measure(folder: Path, name: str, noise: str, term: str, way: str, seed: int) -> dict[str, float]:
    """Log-loss and accuracy on the test rows, at the chosen epoch."""
    file = RUNS / f"{name}-{noise}-{term}-{way.replace(' ', '-')}-{seed}.json"
    if file.is_file():
        return json.loads(file.read_text())
    data = some_of(DATA[name](folder).data)
    bags = make_bags(data, "random", bag_size=8, largest=32, seed=seed)
    if noise != "none":
        table = dict(zip(bags.bag_ids.tolist(), reported(bags, noise, seed), strict=True))
        noisy = Bags.from_table(
            bags.bag_of[bags.members],
            table,
            values="counts",
            noise=noise,
            noise_scale=NOISES[noise],
            class_names=bags.class_names,
        )
        known = {"reported": noisy.reported, "noise": noisy.noise} if way == "known noise" else {}
        bags = replace(bags, proportions=noisy.proportions, **known)
    train_bags, held_out = bags.hold_out(default_held_out(len(bags)), seed)
    recipe = {"epochs": 30, "choose_by": "count_score" if term == "count" else "bag_kl"}
    recipe |= {"lr": 3e-3} if name == "digits" else {}
    torch.manual_seed(seed)
    model = create_model("mlp", num_classes=len(data.class_names), input_shape=data.input_shape)
    outcome = train(
        model,
        create_method("dllp", bag_term=term),
        data,
        train_bags,
        held_out=held_out,
        recipe=Config.layered(preset("quick", TABLE), {"recipe": recipe}).recipe,
        compute=Compute(device="cpu", threads=1),
        seed=seed,
    )
    log_p, labels = outcome.predict(data.test.inputs), data.test.labels
    result = {
        "log_loss": torch.nn.functional.nll_loss(log_p, labels).item(),
        "accuracy": 100 * (log_p.argmax(1) == labels).double().mean().item(),
    }
    write_atomically(file, json.dumps(result).encode())
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    folder = parser.parse_args().data_dir / "tabular"
    names = list(DATA) if folder.is_dir() else ["digits"]
    cases = [
        (name, noise, term, way)
        for name in names
        for noise in ("none", *NOISES)
        for term, way in (WAYS if noise != "none" else (("mean", "exact"), ("count", "exact")))
    ]
    jobs = [(*case, seed) for case in cases for seed in SEEDS]
    os.environ["OMP_NUM_THREADS"] = "1"
    RUNS.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        results = dict(zip(jobs, pool.map(measure, [folder] * len(jobs), *zip(*jobs, strict=True)), strict=True))
    with open(RESULTS / "noisy_counts.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["data", "noise", "bag term", "counts", "seed", "log-loss", "accuracy"])
        for job, result in results.items():
            table.writerow([*job, f"{result['log_loss']:.4f}", f"{result['accuracy']:.2f}"])
    lines = [
        "| data | noise | bag term | counts | log-loss | lower than mean / count plugged in | accuracy | n |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for case in cases:
        runs = [results[*case, seed] for seed in SEEDS]
        lower = "-"
        if case[3] == "known noise":
            wins = [
                sum(
                    results[*case, seed]["log_loss"] < results[*case[:2], term, "plugged in", seed]["log_loss"]
                    for seed in SEEDS
                )
                for term in ("mean", "count")
            ]
            lower = f"{wins[0]} / {wins[1]} of {len(SEEDS)} seeds"
        cells = [cell([run["log_loss"] for run in runs], 3), lower, cell([run["accuracy"] for run in runs], 2)]
        lines.append(f"| {' | '.join([*case, *cells])} | {len(runs)} |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "noisy_counts.md").write_text(text)
    print(text)


def cell(values: list[float], digits: int) -> str:
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


if __name__ == "__main__":
    main()
