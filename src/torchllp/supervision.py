"""The instances and bags that a config names: of a data set, or the user's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from torchllp.bags import Bags, num_held_out
from torchllp.config import Config, DataConfig, OwnConfig
from torchllp.data import BAG_MAKERS, load_dataset
from torchllp.data.bag_makers import make_bags
from torchllp.data.dataset import Dataset, Instances
from torchllp.data.image_cache import Progress
from torchllp.data.own import OwnData, read_own
from torchllp.data.readers import Columns
from torchllp.errors import LLPError
from torchllp.methods import METHODS
from torchllp.run import Run, read_json


def bags_of(run: Run) -> Bags | None:
    """The bags of a run, once they have been written."""
    return Bags.load(run.bags_file) if run.bags_file.is_file() else None


def load_supervision(
    config: Config, bags: Bags | None = None, progress: Progress | None = None
) -> tuple[Dataset, Bags, Bags, Bags | None]:
    """The data set of a config, all of its bags, those to train on and those held out.

    ``bags`` are those of an existing run; without them they are read or made as the config says.
    """
    source = None
    if bags is None and config.data.bags_from is not None:
        source = Run.open(Path(config.data.bags_from))
        if not METHODS.load(source.config.method.name).learns_classes:
            raise LLPError(f"{source.path}: was pre-trained, and has no bags")
        bags = Bags.load(source.bags_file)
    if config.own.is_given:
        own = _load_own(config, bags, progress)
        data, ids = own.data, own.bag_ids
        bags = own.bags or _make(config, data, ids)
    else:
        data, ids = load_data(config.data), None
        bags = bags or _make(config, data)
    if len(bags.bag_of) != len(data.train) or bags.class_names != data.class_names:
        whose = config.data.bags_from or "the run"
        raise LLPError(f"{whose}: its bags are not over the instances and classes of {data.name}")
    if source is not None:
        _check_same_rows(source, bags, data, ids)
    num_bags = num_held_out(config.data.held_out, int(bags.is_labelled.sum()))
    train_bags, held_out = bags.hold_out(num_bags, config.seed)
    if config.own.learn_labels:
        if data.train.labels is None:
            raise LLPError(f"{data.name}: there are no classes to learn from: name their column by --label-column")
        labels = data.train.labels.numpy()
        train_bags = train_bags.with_labels(labels if held_out is None else np.where(held_out.bag_of < 0, labels, -1))
        if data.test is data.train:  # what is learnt by heart is no test
            data = replace(data, test=None)
    return data, bags, train_bags, held_out


def load_instances(config: Config, progress: Progress | None = None) -> Dataset:
    """The training instances of a config alone: nothing is read, or kept, of bags and labels."""
    own = config.own
    if own.is_given:
        data = read_own(
            columns_of(own),
            instances=own.instances,
            features=own.features,
            images=own.images,
            image_size=own.image_size,
            flip=own.flip,
            progress=progress,
            need_classes=False,
        ).data
    else:
        data = load_data(config.data)
    return replace(data, train=Instances(data.train.inputs), test=None)


def check_inputs(run: Run, data: Dataset, *, labels: bool = False) -> None:
    """Raise unless ``data`` has the training inputs of a run, made in the same way; with ``labels``, also these."""
    keys = ("inputs", "encoder", "labels") if labels else ("inputs", "encoder")
    known = read_json(run.data_file)
    if any(known[key] != data.description[key] for key in keys):
        raise LLPError(f"{run.path}: the instances of {data.name} are not those that the run began with")


def _check_same_rows(run: Run, bags: Bags, data: Dataset, ids: np.ndarray | None) -> None:
    """Raise unless the bags of a run belong to the rows of ``data``: by their inputs, or else by the bag column."""
    if read_json(run.data_file)["inputs"] == data.description["inputs"]:
        return
    members = np.flatnonzero(bags.bag_of >= 0)
    if ids is None or len(ids) != len(bags.bag_of) or (ids[members] != bags.bag_ids[bags.bag_of[members]]).any():
        raise LLPError(f"{run.path}: its bags are over other instances than those of {data.name}, or in another order")


def load_data(config: DataConfig) -> Dataset:
    """The named data set of a config."""
    options = {"split": config.split} if config.split is not None else {}
    if options and config.dataset != "mini-imagenet":
        raise LLPError(f"{config.dataset} has one split only: leave `split` out")
    data = load_dataset(config.dataset, config.data_dir, download=config.download, **options)
    for asked, instances, what in (
        (config.num_train, data.train, "training"),
        (config.num_test, data.test, "test"),
    ):
        if asked is not None and (instances is None or asked > len(instances)):
            there = 0 if instances is None else len(instances)
            raise LLPError(f"{config.dataset} has {there:,} {what} instances, fewer than the {asked:,} asked for")
    return replace(data, train=data.train.first(config.num_train), test=data.test and data.test.first(config.num_test))


def own_files(config: Config) -> list[Path]:
    """The user's files that a config names."""
    own = config.own
    bags = None if config.data.bags in BAG_MAKERS else config.data.bags
    names = [own.instances, own.features, own.test, bags] if own.is_given else []
    return [Path(name) for name in names if name is not None]


def columns_of(own: OwnConfig) -> Columns:
    """What the columns of the user's tables are."""
    return Columns(
        bag=own.bag_column,
        label=own.label_column,
        id=own.id_column,
        feature=own.feature_column,
        categorical=own.categorical_column,
        path=own.path_column,
    )


def _load_own(config: Config, bags: Bags | None, progress: Progress | None) -> OwnData:
    own, settings = config.own, config.data
    from_table = bags is None and settings.bags not in BAG_MAKERS
    if from_table and not Path(settings.bags).exists():
        names = ", ".join(BAG_MAKERS)
        raise LLPError(f"{settings.bags}: there is no such table of bags, and no such way to make them ({names})")
    return read_own(
        columns_of(own),
        instances=own.instances,
        features=own.features,
        images=own.images,
        test=own.test,
        bags=settings.bags if from_table else bags,
        image_size=own.image_size,
        flip=own.flip,
        progress=progress,
        class_columns=own.class_column,
        size_column=own.size_column,
        values=own.bag_values,
        normalize=own.normalize,
        unlabelled=own.unlabelled,
        noise=own.bag_noise,
        noise_scale=own.bag_noise_scale,
        noise_column=own.bag_noise_column,
    )


def _make(config: Config, data: Dataset, by: np.ndarray | None = None) -> Bags:
    settings = config.data
    if not config.own.is_given and settings.bags not in BAG_MAKERS and Path(settings.bags).exists():
        raise LLPError(f"{settings.bags}: a table of bags goes with instances of your own: --instances or --images")
    return make_bags(
        data,
        settings.bags,
        bag_size=settings.bag_size,
        largest=settings.largest_bag,
        concentration=settings.concentration,
        by=by,
        seed=config.seed,
    )
