"""How much is lost when bags are those of the world instead of random ones: Adult, Bank marketing, Contraception.

    python benchmarks/natural_bags.py --data-dir DIR

DIR has `tabular/` with the files of the three (without it nothing is done). Natural bags are occupations in Adult,
month x day of the week x job in Bank, districts in Contraception; random bags have the same sizes, filled with other
rows, or 16 rows each. Test rows are Adult's own, and a random fifth (Bank) and quarter (Contraception), the same for
all seeds. Two processes of one thread each write `benchmarks/results/natural_bags.csv` (a row a run) and
`natural_bags.md`.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from common import EPOCHS, ONE_THREAD, mean_and_deviation, write_csv, write_table
from tables import adult, bank, contraception

from torchllp import Bags, Config, create_method, create_model, make_bags, train
from torchllp.bags import default_held_out
from torchllp.metrics import auc
from torchllp.presets import TABLE, preset

SEEDS = range(3)
DATA = {"Adult by occupation": adult, "Bank by month, day and job": bank, "Contraception by district": contraception}
JOBS = [
    (name, kind, method, seed)
    for name in DATA
    for kind, method in (
        ("natural", "ahil"),
        ("natural", "dllp"),
        ("random, same sizes", "ahil"),
        ("random, same sizes", "dllp"),
        ("random, 16", "ahil"),
        ("random, 16", "dllp"),
        ("random, 16", "supervised"),
    )
    for seed in SEEDS
]


def measure(folder: Path, name: str, kind: str, method: str, seed: int) -> dict[str, float]:
    """Accuracy in percent at the three epochs, and AUC of the averaged model (chosen, else last epoch)."""
    own = DATA[name](folder)
    data = own.data
    bags = make_bags(data, "natural", by=own.bag_ids, seed=seed)
    if kind == "random, 16":
        bags = make_bags(data, "random", bag_size=16, seed=seed)
    elif kind == "random, same sizes":
        places = np.flatnonzero(bags.bag_of >= 0)
        bag_of = bags.bag_of.copy()
        bag_of[places] = np.random.default_rng(seed).permutation(bag_of[places])
        bags = Bags.from_labels(bag_of, data.train.labels.numpy(), class_names=data.class_names)
    train_bags, held_out = bags.hold_out(default_held_out(len(bags)), seed)
    recipe = Config.layered(preset("quick", TABLE)).recipe
    torch.manual_seed(seed)
    model = create_model("mlp", num_classes=len(data.class_names), input_shape=data.input_shape)
    outcome = train(
        model,
        create_method(method),
        data,
        train_bags,
        held_out=held_out,
        recipe=recipe,
        compute=ONE_THREAD,
        seed=seed,
    )
    rows = outcome.metrics
    found = {"last": rows[-1], "oracle": max(rows, key=lambda row: row["test/accuracy"])}
    if outcome.chosen is not None:
        found["chosen"] = outcome.chosen
    log_p = outcome.predict(data.test.inputs)
    largest = np.bincount(data.test.labels.numpy()).max() / len(data.test)
    return {epoch: 100 * row["test/accuracy"] for epoch, row in found.items()} | {
        "auc": 100 * auc(log_p, data.test.labels).mean().item(),
        "bags": len(bags),
        "largest class": 100 * largest,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    folder = parser.parse_args().data_dir / "tabular"
    if not folder.is_dir():
        print(f"skipped: there is no {folder}: say where the files are by --data-dir or TORCHLLP_DATA")
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(measure, [folder] * len(JOBS), *zip(*JOBS, strict=True)))
    columns = ["bags", "largest class", *EPOCHS, "auc"]
    write_csv(
        "natural_bags",
        ["data", "kind", "method", "seed", *columns],
        [
            [*job, *(f"{result[name]:.2f}" if name in result else "" for name in columns)]
            for job, result in zip(JOBS, results, strict=True)
        ],
    )
    lines = []
    for name, kind, method in dict.fromkeys(job[:3] for job in JOBS):
        runs = [result for job, result in zip(JOBS, results, strict=True) if job[:3] == (name, kind, method)]
        cells = [mean_and_deviation([run[column] for run in runs if column in run]) for column in (*EPOCHS, "auc")]
        bags = f"{runs[0]['bags']:,} {kind}" if method != "supervised" else "(all labels)"
        lines.append([name, bags, method, *cells, f"{len(runs)}"])
        if method == "supervised":
            lines.append([name, "(no rows)", "largest class", f"{runs[0]['largest class']:.2f}", "", "", "50.00", ""])
    heads = ["data", "bags", "method", "last epoch", "chosen epoch", "oracle epoch", "AUC", "n"]
    write_table("natural_bags", heads, lines, num_words=3)


if __name__ == "__main__":
    main()
