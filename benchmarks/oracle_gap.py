"""How far a choice of the epoch by held-out bags is from the best epoch by labels, for each criterion.

    python benchmarks/oracle_gap.py [--data-dir DIR]

Digits always; Fashion-MNIST (10,000 images) and Adult, Bank and Contraception (`tabular/`) where DIR has them. Bags are
random ones of 16 and 64, and the natural ones of Bank and Contraception. Two methods, three seeds; all criteria judge
the same runs, so they are compared on equal terms. Writes `benchmarks/results/oracle_gap.csv` (a row a run) and `.md`:
accuracy at the last epoch, at the chosen one and at the oracle's, and the gap of the choice, oracle less chosen.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ONE_THREAD, mean_and_deviation, run_all, with_first_images, write_csv, write_table
from tables import adult, bank, contraception

from torchllp import Bags, Config, Dataset, create_method, create_model, load_dataset, make_bags, train
from torchllp.bags import default_held_out
from torchllp.engine.process import seeded
from torchllp.engine.train import is_better
from torchllp.presets import TABLE, preset

CRITERIA = ("bag_kl", "bag_mae", "count_score")
TABLES = {"adult": adult, "bank": bank, "contraception": contraception}
SETTINGS = (
    ("digits", "16"),
    ("digits", "64"),
    ("fashion-mnist", "16"),
    ("fashion-mnist", "64"),
    ("adult", "16"),
    ("adult", "64"),
    ("bank", "natural"),
    ("contraception", "natural"),
)
COLUMNS = ["last", *CRITERIA, "oracle"]


@dataclass(frozen=True)
class Job:
    folder: Path | None
    data: str
    bags: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.bags}-{self.method}-seed{self.seed}"

    def load(self) -> tuple[Dataset, Bags]:
        if self.data in TABLES:
            assert self.folder is not None
            own = TABLES[self.data](self.folder / "tabular")
            data, ids = own.data, own.bag_ids
        else:
            data, ids = load_dataset(self.data, self.folder), None
            if self.data == "fashion-mnist":
                data = with_first_images(data, 10_000, 5_000)
        if self.bags == "natural":
            return data, make_bags(data, "natural", by=ids, seed=self.seed)
        return data, make_bags(data, "random", bag_size=int(self.bags), seed=self.seed)

    def run(self) -> list[dict[str, Any]]:
        data, bags = self.load()
        train_bags, held_out = bags.hold_out(default_held_out(len(bags)), self.seed)
        layer = preset("quick", TABLE if self.data in TABLES else self.data)
        images = {"recipe": {"epochs": 15, "instances_per_step": 256}} if self.data == "fashion-mnist" else {}
        recipe = Config.layered(layer, images).recipe
        name = "mlp" if self.data in TABLES else "small-cnn"
        with seeded("first weights", self.seed):
            model = create_model(name, num_classes=len(data.class_names), input_shape=data.input_shape)
        arguments: dict[str, Any] = {"recipe": recipe, "compute": ONE_THREAD, "seed": self.seed}
        rows = train(model, create_method(self.method), data, train_bags, held_out=held_out, **arguments).metrics
        found = {"last": rows[-1], "oracle": max(rows, key=lambda row: row["test/accuracy"])}
        for criterion in CRITERIA:
            best = rows[0]
            for row in rows[1:]:
                best = row if is_better(row, best, criterion) else best
            found[criterion] = best
        settings = {"data": self.data, "bags": self.bags, "method": self.method, "seed": self.seed}
        return [settings | {name: 100 * row["test/accuracy"] for name, row in found.items()}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("TORCHLLP_DATA"))
    folder = parser.parse_args().data_dir
    folder = folder and Path(folder)
    settings = []
    for data, bags in SETTINGS:
        needed = "tabular" if data in TABLES else "FashionMNIST"
        if data == "digits" or (folder is not None and (folder / needed).is_dir()):
            settings.append((data, bags))
        else:
            print(f"skipped: {data}, bags {bags}: say by --data-dir where its files are")
    jobs = [
        Job(folder, data, bags, method, seed)
        for seed in range(3)
        for data, bags in settings
        for method in ("ahil", "dllp")
    ]
    rows = run_all(jobs, "oracle-gap")
    names = ["data", "bags", "method", "seed"]
    write_csv(
        "oracle_gap", [*names, *COLUMNS], [[row[n] for n in names] + [f"{row[c]:.2f}" for c in COLUMNS] for row in rows]
    )
    lines = []
    for data, bags in settings:
        for method in ("ahil", "dllp"):
            runs = [row for row in rows if (row["data"], row["bags"], row["method"]) == (data, bags, method)]
            lines.append([data, bags, method, *cells(runs), f"{len(runs)}"])
    lines.append(["mean of all", "", "", *(cell.split(" ±")[0] for cell in cells(rows)), f"{len(rows)}"])
    heads = ["data", "bags", "method", "last", *CRITERIA, "oracle", *(f"gap by {c}" for c in ("last", *CRITERIA)), "n"]
    write_table("oracle_gap", heads, lines, num_words=3)


def cells(runs: list[dict[str, Any]]) -> list[str]:
    accuracies = [mean_and_deviation([run[column] for run in runs]) for column in COLUMNS]
    gaps = [mean_and_deviation([run["oracle"] - run[column] for run in runs]) for column in ("last", *CRITERIA)]
    return [*accuracies, *gaps]


if __name__ == "__main__":
    main()
