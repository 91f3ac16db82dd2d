"""Which flags make sense together: one that would change nothing is misuse."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchllp.cli import Misuse
from torchllp.config import Config
from torchllp.data import BAG_MAKERS


def check_flags(config: Config, *layers: Mapping[str, Any], needs_bags: bool = True) -> None:
    """Raise unless each flag, those are in the last of ``layers``, has something to do in ``config``."""
    flags = layers[-1]
    given = [(section, name) for section in ("data", "own", "recipe") for name in flags.get(section, {})]
    for section, name in given:
        for fits, reason in _conditions(config, section, name, needs_bags):
            if not fits:
                raise Misuse(f"--{name.replace('_', '-')} {reason}")
    if config.freeze and config.init_from is None:
        raise Misuse("--freeze trains a head on the features of a run: name it by --init-from")
    says_bags = any({"bags", "bags_from"} & {*layer.get("data", {})} for layer in layers)
    if config.own.is_given and needs_bags and not says_bags:
        raise Misuse(f"say by --bags the table of your bags, or how to make them from labels: {', '.join(BAG_MAKERS)}")


def _conditions(config: Config, section: str, name: str, needs_bags: bool) -> Iterator[tuple[bool, str]]:
    """What must hold for a setting to matter, and what to say if it does not."""
    own, data = config.own, config.data
    has_table = own.is_given and data.bags not in BAG_MAKERS and data.bags_from is None
    if section == "own":
        yield own.is_given, "is about instances of your own: give them by --instances or --images"
    of_table = ("class_column", "size_column", "bag_values", "normalize", "unlabelled")
    if name in of_table or name.startswith("bag_noise"):
        yield has_table, "is about a table of bags: give it by --bags"
    if name == "learn_labels":
        yield own.label_column is not None, "learns from a column with classes: name it by --label-column"
    if name in ("bag_noise_scale", "bag_noise_column"):
        yield own.bag_noise is not None, "is the scale of a noise: say which by --bag-noise"
    if name == "normalize":
        yield own.bag_noise is None, "has nothing to do: noisy numbers may sum to anything"
    if name in ("features", "feature_column", "categorical_column"):
        yield own.is_table, "is for tables of your own, by --instances"
    if name in ("noise", "corruption"):
        yield own.is_table or config.freeze, "is for tables of your own, by --instances, and for --freeze"
    if name in ("image_size", "flip"):
        yield not own.is_table, "is for images"
    if name == "randaugment":
        yield not own.is_table and not config.freeze, "is for images: rows of features have --noise and --corruption"
        yield needs_bags, "is for strong views, and SimCLR has views of its own"
    if name in ("dataset", "data_dir", "download", "split", "num_train", "num_test"):
        yield not own.is_given, "is about data sets of ours, and --instances and --images are yours"
    if name in ("bags", "bag_size", "largest_bag", "concentration"):
        yield data.bags_from is None, "has nothing to do: --bags-from takes the bags of a run as they are"
    if name in ("bag_size", "largest_bag"):
        yield data.bags in BAG_MAKERS and data.bags != "natural", "has nothing to do: your bags have their own sizes"
    if name == "concentration":
        yield data.bags == "dirichlet", "is for --bags dirichlet"
