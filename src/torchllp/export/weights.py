"""safetensors: a folder with the weights and all that is needed to build the classifier again."""

import json
from pathlib import Path

from safetensors.torch import save

from torchllp.data.table_encoder import TableEncoder
from torchllp.export.classifier import RawClassifier, raw_classifier
from torchllp.export.format import DESCRIPTION, Format, Runner
from torchllp.files import write_atomically
from torchllp.run import new_model, read_json, read_tensors

WEIGHTS = "model.safetensors"


class Weights(Format):
    suffix = ""
    runs_by = "torchllp.load_exported"

    def problem(self, classifier: RawClassifier) -> str | None:
        if classifier.made_of is not None:
            return None
        name = type(classifier.model).__name__
        return f"{name} is a module of your own, which weights alone do not build again: take onnx or torch-export"

    def write(self, classifier: RawClassifier, path: Path) -> None:
        path.mkdir()
        tensors = {name: tensor.contiguous() for name, tensor in classifier.model.state_dict().items()}
        write_atomically(path / WEIGHTS, save(tensors))
        about = json.dumps(classifier.describe(texts=self.texts), indent=2) + "\n"
        write_atomically(path / DESCRIPTION, about.encode())

    def runner(self, classifier: RawClassifier, path: Path) -> Runner:
        loaded = load_exported(path)
        return lambda inputs: loaded(**loaded.tensors(inputs)).detach().numpy()


def load_exported(path: Path | str) -> RawClassifier:
    """The classifier in a folder that was exported as safetensors; nothing else of the run is needed.

    ``predict_proba`` takes raw instances; ``class_names`` are the classes in order, ``model`` is the network alone.
    """
    folder = Path(path)
    about = read_json(folder / DESCRIPTION)
    model, encoder = new_model(about["model"]), about.get("encoder")
    model.load_state_dict(read_tensors(folder / WEIGHTS))
    return raw_classifier(
        model,
        about["class_names"],
        about["model"]["input_shape"],
        mean=about.get("mean", ()),
        std=about.get("std", ()),
        encoder=None if encoder is None else TableEncoder.from_json(encoder),
        temperature=about["temperature"],
        made_of=about["model"],
    )
