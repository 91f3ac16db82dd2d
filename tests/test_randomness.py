import subprocess
import sys

from torchllp.randomness import seed_of

PURPOSES = ("bags", "held out", "first weights", "order", "views and method", "dropout")


def test_seeds_are_distinct_whatever_the_purpose_and_the_number_of_integers() -> None:
    integers = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (1, 0, 0), (0, 1, 0), (11,), (-1,)]
    seeds = {seed_of(purpose, *values) for purpose in PURPOSES for values in integers}
    assert len(seeds) == len(PURPOSES) * len(integers)
    assert min(seeds) >= 0 and max(seeds) < 2**63


def test_seeds_are_the_same_in_every_process() -> None:
    code = "from torchllp.randomness import seed_of; print(seed_of('order', 3, 1))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == seed_of("order", 3, 1)
