"""A telephone campaign of which only daily reports are left: who will buy?

    python examples/bank_campaign.py --data-dir DIR

DIR has tabular/bank-additional-full.csv (UCI Bank Marketing, CC BY 4.0). What a bank would have is written to the
folder `bank`: `customers.csv` (who was called when), `reports.csv` (how many said yes and no, by month, day of the week
and job) and `later.csv` (other customers, with their answer, to see how good the classifier is). Then a classifier of
single customers is trained from the reports alone. docs/own-data.md tells the same story by command.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from torchllp import Recipe, check_bags, create_method, create_model, load_table, train
from torchllp.metrics import auc

REPORTED_BY = ["month", "day_of_week", "job"]


def write_tables(source: Path, folder: Path) -> None:
    rows = pa.csv.read_csv(source, parse_options=pa.csv.ParseOptions(delimiter=";"))
    rows = rows.drop_columns(["duration"])  # of the call, which nobody knows before it
    rows = rows.append_column("customer", pa.array(np.arange(len(rows))))
    later = np.random.default_rng(0).random(len(rows)) < 0.2
    campaign = rows.filter(pa.array(~later))
    said_yes = pa.array([answer == "yes" for answer in campaign["y"].to_pylist()])
    counted = campaign.append_column("yes", said_yes.cast(pa.int64()))
    reports = counted.group_by(REPORTED_BY).aggregate([("yes", "sum"), ("yes", "count")])
    no = pa.array(reports["yes_count"].to_numpy() - reports["yes_sum"].to_numpy())
    folder.mkdir(exist_ok=True)
    pa.csv.write_csv(campaign.drop_columns(["y"]), folder / "customers.csv")
    pa.csv.write_csv(rows.filter(pa.array(later)), folder / "later.csv")
    by = reports.select([*REPORTED_BY, "yes_sum"]).rename_columns([*REPORTED_BY, "yes"])
    pa.csv.write_csv(by.append_column("no", no), folder / "reports.csv")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("TORCHLLP_DATA", "data")))
    parser.add_argument("--folder", type=Path, default=Path("bank"))
    parser.add_argument("--only-tables", action="store_true", help="write the tables and train nothing")
    arguments = parser.parse_args()
    source = arguments.data_dir / "tabular" / "bank-additional-full.csv"
    if not source.is_file():
        print(f"skipped: there is no {source}; get it from UCI's Bank Marketing data and say where it is by --data-dir")
        return
    write_tables(source, arguments.folder)
    if arguments.only_tables:
        return

    data, bags = load_table(
        arguments.folder / "customers.csv",
        arguments.folder / "reports.csv",
        bag_column=REPORTED_BY,
        id_column="customer",
        test=arguments.folder / "later.csv",
        label_column="y",
    )
    print(bags)
    for finding in check_bags(bags):
        print(f"  {finding.subject}: {finding.value} ({finding.meaning})")
    train_bags, held_out = bags.hold_out(len(bags) // 10, seed=0)
    model = create_model("mlp", num_classes=2, input_shape=data.input_shape)
    recipe = Recipe(epochs=10, optimizer="adamw", lr=1e-3, instances_per_step=512)
    outcome = train(model, create_method("ahil"), data, train_bags, held_out=held_out, recipe=recipe)

    log_p = outcome.predict(data.test.inputs)
    yes = data.class_names.index("yes")
    likeliest = log_p[:, yes].topk(len(log_p) // 10).indices
    found = (data.test.labels[likeliest] == yes).sum() / (data.test.labels == yes).sum()
    print(f"area under the curve for later customers: {auc(log_p, data.test.labels)[yes]:.3f}")
    print(f"to call the likeliest tenth of them reaches {found:.1%} of those who say yes")


if __name__ == "__main__":
    main()
