"""A fitted LLPClassifier as two files, model.safetensors and estimator.json, which hold nothing that could be run."""

import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from torchllp.calibration import Calibration
from torchllp.data.arrays import Images, Rows
from torchllp.data.proportions import text_of_id
from torchllp.engine.process import seeded
from torchllp.errors import LLPError
from torchllp.files import write_atomically
from torchllp.run import Run, read_json, read_tensors
from torchllp.views.image import ImageViews
from torchllp.views.table import TableViews
from torchllp.views.views import Views

FILES = ("model.safetensors", "estimator.json")
READERS = {"rows": Rows, "images": Images}
OWN = ("model", "views", "random_state")
"""Parameters that may be objects of the user's own, which no JSON file can hold."""


def save_classifier(classifier: Any, folder: Path) -> None:
    """Write a fitted classifier into a directory that is new, empty, or has one already."""
    if folder.is_file() or (folder.is_dir() and not _is_free(folder)):
        raise LLPError(f"{folder}: there is something here already that is no classifier: take another directory")
    parameters = {name: plain(value) for name, value in classifier.get_params(deep=False).items()}
    if hasattr(classifier.bag_noise_scale, "items"):  # keys of JSON are texts
        parameters["bag_noise_scale"] = {text_of_id(bag): scale for bag, scale in classifier.bag_noise_scale.items()}
    for name in OWN:
        if not isinstance(parameters[name], str | int | None):
            parameters.pop(name)
    if not isinstance(classifier.method, str):
        raise LLPError(f"the method is an object ({type(classifier.method).__name__}), which no JSON file can hold")
    classes, names = classifier.classes_, getattr(classifier, "feature_names_in_", None)
    content = {
        "torchllp": version("torchllp"),
        "parameters": parameters,
        "classes": {"dtype": classes.dtype.str, "values": classes.tolist()},
        "class_prior": classifier.class_prior_.tolist(),
        "input": type(classifier.reader_).__name__.lower(),
        "reader": classifier.reader_.to_json(),
        "mean": list(getattr(classifier.views_, "mean", ())),
        "std": list(getattr(classifier.views_, "std", ())),
        "n_features_in": classifier.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "chosen_epoch": classifier.chosen_epoch_,
        "metrics": classifier.metrics_,
        "calibration": classifier.calibration_.to_json(),
    }
    try:
        json.dumps(content)
    except TypeError as error:
        raise LLPError(f"a parameter or a class of the classifier is nothing that JSON can hold ({error})") from error
    folder.mkdir(parents=True, exist_ok=True)
    weights = classifier.model_.state_dict().items()
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights}  # some may be tied
    with TemporaryDirectory(prefix=".saving-", dir=folder) as place:  # the old files stay until the new ones are whole
        write_atomically(Path(place, "model.safetensors"), save(copies))
        Run.write_json(Path(place, "estimator.json"), content)
        (folder / "estimator.json").unlink(missing_ok=True)  # it marks the directory as whole
        for name in FILES:
            os.replace(Path(place, name), folder / name)


def _is_free(folder: Path) -> bool:
    """Whether there is nothing but a classifier, or what is left of one where saving was cut off."""
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".saving-")}
    return "estimator.json" in names or names <= {*FILES}


def load_classifier(kind: Any, folder: Path, *, model: Any = None, views: Views | None = None) -> Any:
    """The classifier, of this class, that was saved there; what was the user's own must be given again."""
    content = read_json(folder / "estimator.json")
    parameters = content["parameters"]
    for name, given in (("model", model), ("views", views)):
        if name not in parameters and given is None:
            raise LLPError(f"{folder}: was fitted with {name} of the user's own, which must be given again: {name}=...")
        parameters[name] = parameters.get(name) if given is None else given
    loaded = kind(**parameters)
    loaded.reader_ = READERS[content["input"]].from_json(content["reader"])
    loaded.classes_ = np.array(content["classes"]["values"], dtype=content["classes"]["dtype"])
    loaded.class_prior_ = np.array(content["class_prior"])
    loaded.views_ = views or plain_views(loaded.reader_, content["mean"], content["std"])
    loaded.n_features_in_ = content["n_features_in"]
    if content["feature_names_in"] is not None:
        loaded.feature_names_in_ = np.array(content["feature_names_in"], dtype=object)
    loaded.chosen_epoch_, loaded.metrics_ = content["chosen_epoch"], content["metrics"]
    loaded.calibration_ = Calibration.from_json(content["calibration"], len(loaded.classes_))
    with seeded("weights that are replaced"):
        loaded.model_ = loaded._new_model(len(loaded.classes_), loaded.reader_)
    try:
        loaded.model_.load_state_dict(read_tensors(folder / "model.safetensors"))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise LLPError(f"{folder}: the weights there are not those of such a model ({reason})") from error
    loaded.model_.eval()
    return loaded


def plain(value: Any) -> Any:
    """Arrays and NumPy's numbers as lists and numbers of Python; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def plain_views(reader: Rows | Images, mean: Sequence[float], std: Sequence[float]) -> Views:
    """Views that only prepare instances for the model; those that train hold on to the training rows."""
    if isinstance(reader, Images):
        return ImageViews(mean=tuple(mean), std=tuple(std))
    return TableViews(reader.encoder.columns, reader.encoder.is_number)
