"""Three real tables that benchmarks learn from, read as a user's own."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from torchllp.data.own import OwnData, read_own
from torchllp.data.readers import Columns

ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    "capital-loss,hours-per-week,native-country,income"
)


def adult(folder: Path) -> OwnData:
    def rows(name: str) -> pa.Table:
        lines = [line.rstrip(".") for line in (folder / name).read_text().splitlines() if line.count(",") == 14]
        return pa.csv.read_csv(io.BytesIO("\n".join([ADULT, *(line.replace(", ", ",") for line in lines)]).encode()))

    columns = Columns(bag=("occupation",), label="income", id=("fnlwgt",))  # a weight of the survey, no feature
    return read_own(columns, instances=known(rows("adult.data")), test=known(rows("adult.test")))


def known(table: pa.Table) -> pa.Table:
    """The same table with ``?`` as missing."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            values = [None if value == "?" else value for value in table.column(i).to_pylist()]
            table = table.set_column(i, field.name, pa.array(values))
    return table


def bank(folder: Path) -> OwnData:
    options = pa.csv.ParseOptions(delimiter=";")
    rows = pa.csv.read_csv(folder / "bank-additional-full.csv", parse_options=options)
    # the duration of a call is known only after it
    return split(rows, 0.2, Columns(bag=("month", "day_of_week", "job"), label="y", id=("duration",)))


def contraception(folder: Path) -> OwnData:
    rows = pa.csv.read_csv(folder / "mlmRev_Contraception.csv")
    columns = Columns(bag=("district",), label="use", id=("woman",), categorical=("livch",))
    return split(rows, 0.25, columns)


def split(rows: pa.Table, share: float, columns: Columns) -> OwnData:
    is_test = np.random.default_rng(0).random(len(rows)) < share
    return read_own(columns, instances=rows.filter(pa.array(~is_test)), test=rows.filter(pa.array(is_test)))
