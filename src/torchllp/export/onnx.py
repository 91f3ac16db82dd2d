"""ONNX: one file with all that is needed, for runtimes of any language."""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchllp.errors import LLPError
from torchllp.export.classifier import RawClassifier, RowClassifier
from torchllp.export.format import Format, Runner, cannot_export, graph_of
from torchllp.files import write_atomically

LOOKUP = "ai.onnx.ml"
"""The operators that know texts."""


class Onnx(Format):
    suffix = ".onnx"
    texts = True
    runs_by = "onnxruntime"

    def problem(self, classifier: RawClassifier) -> str | None:
        missing = [name for name in ("onnx", "onnxscript") if not find_spec(name)]
        if missing:
            return f"ONNX files are written by {' and '.join(missing)}: say pip install 'torchllp[onnx]'"
        return None

    def write(self, classifier: RawClassifier, path: Path) -> None:
        import onnx

        graph = graph_of(classifier)
        first, *others = classifier.describe_inputs(texts=False)
        shapes = {first: {0: "batch"}, **dict.fromkeys(others)}  # a size has one name, which the others take over
        names: Any = {"output_names": ["probabilities"], "dynamic_shapes": shapes}
        try:
            made = torch.onnx.export(graph, dynamo=True, verbose=False, **names)
        except Exception as error:  # of any kind, for a model of the user's own
            raise cannot_export(classifier, "torch.onnx", error) from error
        assert made is not None
        model = made.model_proto
        _forget_sources(model.graph)
        if isinstance(classifier, RowClassifier) and classifier.encoder.categories:
            _take_texts(model, classifier.encoder.categories)
        about = classifier.describe(texts=self.texts)
        as_text = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
        onnx.helper.set_model_props(model, as_text)
        if model.ByteSize() >= 2**31:
            raise LLPError(f"{path.name}: one ONNX file holds no more than 2 GB: take torch-export")
        write_atomically(path, model.SerializeToString())

    def runner(self, classifier: RawClassifier, path: Path) -> Runner | None:
        if not find_spec("onnxruntime"):
            return None
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda inputs: np.asarray(session.run(["probabilities"], dict(inputs))[0])


def _forget_sources(graph: Any) -> None:
    """Leave out which module and line each node is from."""
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")


def _take_texts(model: Any, categories: Mapping[str, Sequence[str]]) -> None:
    """Put an input of texts in the place of the one of codes, and before all else the nodes that look them up."""
    from onnx import TensorProto, helper

    graph = model.graph
    nodes, codes = [], []
    for column, names in enumerate(categories.values()):
        place, text, code = (f"{what}_{column}" for what in ("column", "text", "code"))
        graph.initializer.append(helper.make_tensor(place, TensorProto.INT64, [1], [column]))
        nodes.append(helper.make_node("Gather", ["categories", place], [text], axis=1))
        known = {"keys_strings": list(names), "values_int64s": list(range(len(names))), "default_int64": -1}
        nodes.append(helper.make_node("LabelEncoder", [text], [code], domain=LOOKUP, **known))
        codes.append(code)
    nodes.append(helper.make_node("Concat", codes, ["codes"], axis=1))
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    (before,) = (one for one in graph.input if one.name == "codes")
    before.CopyFrom(helper.make_tensor_value_info("categories", TensorProto.STRING, ["batch", len(categories)]))
    model.opset_import.append(helper.make_opsetid(LOOKUP, 3))
