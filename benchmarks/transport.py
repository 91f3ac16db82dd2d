"""How much quicker the transport plans of all bags of a step are made at once than bag by bag.

    python benchmarks/transport.py

64 bags of 16 and others of as many instances, 10 and 100 classes, 25 rounds, one thread. The loop calls the same kind
of Sinkhorn for one bag after the other, vectorised inside the bag; both are timed in turn in one process.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from torchllp.functional import bag_transport

SHAPES = ((64, 16), (16, 64), (4, 256))
ROUNDS, EPS, REPEATS = 25, 1.0, 30
RESULTS = Path(__file__).parent / "results"


def loop(log_p: Tensor, bags: list[slice], counts: Tensor) -> Tensor:
    """A bag at a time, each by plain matrix operations in the log domain."""
    plans = []
    for rows, count in zip(bags, counts, strict=True):
        kernel, target = log_p[rows] / EPS, count.log()
        u = torch.zeros(len(kernel), 1)
        for _ in range(ROUNDS):
            v = target - (kernel + u).logsumexp(0)
            u = -(kernel + v).logsumexp(1, keepdim=True)
        plans.append((kernel + v + u).exp())
    return torch.cat(plans)


def at_once(log_p: Tensor, bag_index: Tensor, counts: Tensor) -> Tensor:
    return bag_transport(log_p, bag_index, counts, eps=EPS, rounds=ROUNDS)[0]


def milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    torch.set_num_threads(1)
    lines = ["bags x size  classes    loop ms   at once ms   ratio (5 % to 95 %)"]
    for num_bags, size in SHAPES:
        for num_classes in (10, 100):
            torch.manual_seed(0)
            log_p = torch.randn(num_bags * size, num_classes).log_softmax(1)
            bag_index = torch.arange(num_bags).repeat_interleave(size)
            counts = torch.full((num_bags, num_classes), size / num_classes)
            bags = [slice(i * size, (i + 1) * size) for i in range(num_bags)]
            calls = (partial(loop, log_p, bags, counts), partial(at_once, log_p, bag_index, counts))
            torch.testing.assert_close(calls[0](), calls[1](), rtol=1e-4, atol=1e-6)
            pairs = [tuple(map(milliseconds, calls)) for _ in range(REPEATS)]
            ratios = statistics.quantiles((slow / quick for slow, quick in pairs), n=20)
            slow, quick = (statistics.median(times) for times in zip(*pairs, strict=True))
            lines.append(
                f"{num_bags:6d} x {size:<4d} {num_classes:6d} {slow:10.1f} {quick:12.1f} "
                f"{statistics.median(a / b for a, b in pairs):7.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            )
            print("\n".join(lines[-2:]) if len(lines) == 2 else lines[-1])
    (RESULTS / "transport.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
