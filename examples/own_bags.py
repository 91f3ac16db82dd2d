"""Your own images, bags and network: lots of parts of which only the share of scratched ones is known."""

import torch
from torch import nn

from torchllp import Bags, Dataset, Instances, Recipe, create_method, train

# 2,000 grey images of parts from 150 lots; a third of the parts have a bright scratch somewhere.
torch.manual_seed(0)  # first weights of the network below
generator = torch.Generator().manual_seed(0)
images = torch.randint(60, 120, (2000, 1, 12, 12), dtype=torch.uint8, generator=generator)
scratched = torch.rand(2000, generator=generator) < 1 / 3
rows = torch.randint(12, (2000,), generator=generator)
images[scratched, 0, rows[scratched], 2:10] = 200
lots = [f"lot-{i}" for i in torch.randint(150, (2000,), generator=generator).tolist()]

# What is known: the lot of each part, and a report of how many parts of each lot are good and scratched.
report = {lot: [0, 0] for lot in lots}
for lot, is_scratched in zip(lots, scratched.tolist(), strict=True):
    report[lot][is_scratched] += 1

data = Dataset.from_images("parts", Instances(images), class_names=["good", "scratched"], flip=True)
bags = Bags.from_table(lots, report, values="counts", class_names=data.class_names)
print(bags)
train_bags, held_out = bags.hold_out(15, seed=0)

model = nn.Sequential(  # any module from images to one logit a class
    nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
recipe = Recipe(epochs=10, optimizer="adamw", lr=0.01)
outcome = train(model, create_method("ahil"), data, train_bags, held_out=held_out, recipe=recipe)

predicted = outcome.predict(images).argmax(1)
print(f"held-out lots: mean error of a share {outcome.metrics[-1]['held_out/bag_mae']:.3f}")
print(f"single parts: {(predicted == scratched).float().mean():.1%} right, though no part's label was ever seen")
