"""Bags of 16 digits whose class proportions are all that training sees, and a classifier of single digits."""

from torchllp import Bags, create_method, create_model, load_dataset, train

data = load_dataset("digits")
bags = Bags.random(data.train.labels.numpy(), bag_size=16, seed=0)  # labels make the bags, then they are put away
train_bags, held_out = bags.hold_out(9, seed=0)  # bags that choose the epoch, not instances with labels
model = create_model("small-cnn", num_classes=10, input_shape=data.input_shape)
outcome = train(model, create_method("ahil"), data, train_bags, held_out=held_out)
print(f"epoch {outcome.chosen['epoch']}: {outcome.chosen['test/accuracy']:.1%} of the test digits are right")
