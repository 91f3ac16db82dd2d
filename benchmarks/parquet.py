"""How long a large Parquet table takes to become standardised float32 features on the device, and in what memory.

    python benchmarks/parquet.py

Compared, in the same process, with `pyarrow.parquet.read_table` and one copy to float32. Memory is the peak above what
the process had before (Linux only).
"""

import re
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torchllp.data.table import Table
from torchllp.data.table_encoder import TableEncoder

NUM_ROWS, NUM_COLUMNS, ROW_GROUP = 1_000_000, 20, 100_000
REPEATS = 7


def write(path: Path) -> None:
    generator = np.random.default_rng(0)
    columns = {f"x{i}": generator.normal(loc=i, size=NUM_ROWS) for i in range(NUM_COLUMNS)}
    pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP)


def plain(path: Path) -> torch.Tensor:
    """What anybody would write: all of the table, then one copy."""
    table = pq.read_table(path)
    matrix = np.empty((table.num_rows, table.num_columns), dtype=np.float32)
    for i, column in enumerate(table.columns):
        matrix[:, i] = column.to_numpy()
    return torch.from_numpy(matrix)


def ours(path: Path, device: str) -> torch.Tensor:
    """Read in blocks, learn means and deviations on the way, standardise."""
    table = Table.of(path)
    return TableEncoder.fit_transform(table, table.column_names)[1].to(device)


def seconds(call: Callable[[], torch.Tensor]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def megabytes(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def peak(path: Path, device: str) -> float:
    """Megabytes at the highest above those at the start; to be called in a process that has read nothing yet."""
    TableEncoder.fit_transform(Table.of({"x": [1.0, 2.0]}), ["x"])[1].to(device)  # loads what is loaded at first use
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = megabytes("VmRSS")
    ours(path, device)
    return megabytes("VmHWM") - before


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.parquet"
        write(path)
        first = ours(path, device).cpu(), plain(path)
        same = (first[1] - first[1].mean(0)) / first[1].std(0, correction=0)
        torch.testing.assert_close(first[0], same, rtol=1e-3, atol=1e-4)
        del first, same
        times = [(seconds(lambda: ours(path, device)), seconds(lambda: plain(path))) for _ in range(REPEATS)]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            memory = pool.submit(peak, path, device).result()
    ratios = [a / b for a, b in times]
    matrix = NUM_ROWS * NUM_COLUMNS * 4 / 2**20
    print(
        f"{NUM_ROWS:,} rows x {NUM_COLUMNS} float64 columns, row groups of {ROW_GROUP:,}, {REPEATS} repeats, {device}"
    )
    print(f"read, fit and standardise   {statistics.median(a for a, _ in times):6.2f} s")
    print(f"read_table and one copy     {statistics.median(b for _, b in times):6.2f} s")
    print(f"ratio                       {statistics.median(ratios):6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")
    print(
        f"peak memory                 {memory:6.0f} MB, {memory / matrix:.2f} x the float32 matrix of {matrix:.0f} MB"
    )


if __name__ == "__main__":
    main()
