"""What `LLPClassifier.fit` costs beside the network itself: 100,000 rows of 50 numbers in 1,000 ragged bags, 10 epochs.

    python benchmarks/fitting.py [--repeats N]

Against a bare PyTorch loop that trains the same network (the default MLP, 2 x 256) supervised on the same rows, in
batches of the same rows, by the same optimiser: nothing but forward, backward and step. Both run in this process, on
one thread, turn by turn; CPU time is compared. Writes `benchmarks/results/fitting.txt`.
"""

import argparse
import time
from statistics import median

import numpy as np
import torch
from common import RESULTS
from torch import nn

from torchllp import Bags, Config, LLPClassifier, create_model
from torchllp.data.sampler import plan_epoch
from torchllp.presets import TABLE, preset

NUM_ROWS, NUM_FEATURES, NUM_BAGS, EPOCHS = 100_000, 50, 1_000, 10


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, their classes, and bags of very different sizes."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    y = (X @ generator.normal(size=NUM_FEATURES) + generator.normal(size=NUM_ROWS) > 0).astype(int)
    weights = generator.gamma(2.0, size=NUM_BAGS)
    bags = generator.choice(NUM_BAGS, size=NUM_ROWS, p=weights / weights.sum())
    return X, y, bags


def bare(X: np.ndarray, y: np.ndarray, steps: list[list[np.ndarray]]) -> None:
    recipe = Config.layered(preset("quick", TABLE)).recipe
    rows, labels = torch.from_numpy(X), torch.from_numpy(y)
    torch.manual_seed(0)
    model = create_model("mlp", num_classes=2, input_shape=(NUM_FEATURES,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    model.train()
    for epoch in steps:
        for members in epoch:
            index = torch.from_numpy(members)
            nn.functional.cross_entropy(model(rows[index]), labels[index]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    X, y, bags = problem()
    shares = {bag: float(y[bags == bag].mean()) for bag in np.unique(bags).tolist()}
    known = Bags.from_labels(np.unique(bags, return_inverse=True)[1], y)
    per_step = Config.layered(preset("quick", TABLE)).recipe.instances_per_step
    steps = [
        [known.members_of(step)[0] for step in plan_epoch(known, per_step, seed=0, epoch=epoch)]
        for epoch in range(EPOCHS)
    ]
    jobs = {"bare supervised loop": lambda: bare(X, y, steps)}
    for method in ("dllp", "ahil"):
        for held_out in (None, 0.0):
            # what is held out is not trained on but judged after each epoch; without it the same rows are trained on
            words = f"{method}, all bags" if held_out == 0 else f"{method}, a tenth held out"
            classifier = LLPClassifier(method, epochs=EPOCHS, held_out=held_out, threads=1, random_state=0)
            jobs[words] = lambda classifier=classifier: classifier.fit(X, bags, shares)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            started = time.process_time()
            job()
            if repeat:  # the first warms up
                seconds[name].append(time.process_time() - started)
    bare_times = seconds["bare supervised loop"]
    sizes = f"{known.sizes.min()} to {known.sizes.max()} rows"
    lines = [
        f"{NUM_ROWS:,} x {NUM_FEATURES} in {len(known):,} bags of {sizes}, {EPOCHS} epochs, "
        f"{sum(map(len, steps)):,} steps"
    ]
    for name, times in seconds.items():
        ratios = [time / base for time, base in zip(times, bare_times, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"{name:24} {median(times):6.2f} s CPU   {median(ratios):5.2f} x   ({spread}, n = {len(times)})")
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fitting.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
