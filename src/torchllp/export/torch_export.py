"""torch.export: a graph that PyTorch loads without any code of ours, in Python or, compiled, in C++."""

import io
import json
from pathlib import Path

import torch

from torchllp.export.classifier import RawClassifier
from torchllp.export.format import DESCRIPTION, Format, Runner, graph_of
from torchllp.files import write_atomically


class TorchExport(Format):
    suffix = ".pt2"
    runs_by = "torch.export.load"

    def write(self, classifier: RawClassifier, path: Path) -> None:
        content = io.BytesIO()
        about = json.dumps(classifier.describe(texts=self.texts))
        torch.export.save(graph_of(classifier), content, extra_files={DESCRIPTION: about})
        write_atomically(path, content.getvalue())

    def runner(self, classifier: RawClassifier, path: Path) -> Runner:
        module = torch.export.load(path).module()
        return lambda inputs: module(**classifier.tensors(inputs)).detach().numpy()
