"""Learning from label proportions: train a classifier of single instances from bags whose class shares are known."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchllp.bags import Bags as Bags
    from torchllp.batch import BagBatch as BagBatch
    from torchllp.check import check_bags as check_bags
    from torchllp.config import Compute as Compute
    from torchllp.config import Config as Config
    from torchllp.config import Recipe as Recipe
    from torchllp.data import list_datasets as list_datasets
    from torchllp.data import load_dataset as load_dataset
    from torchllp.data.bag_makers import make_bags as make_bags
    from torchllp.data.dataset import Dataset as Dataset
    from torchllp.data.dataset import Instances as Instances
    from torchllp.data.own import load_table as load_table
    from torchllp.engine.frozen import freeze as freeze
    from torchllp.engine.train import train as train
    from torchllp.errors import LLPError as LLPError
    from torchllp.export import export_run as export_run
    from torchllp.export import load_exported as load_exported
    from torchllp.methods import create_method as create_method
    from torchllp.methods import list_methods as list_methods
    from torchllp.models import create_model as create_model
    from torchllp.models import list_models as list_models
    from torchllp.run import Run as Run
    from torchllp.search import BagKFold as BagKFold
    from torchllp.search import LLPSearchCV as LLPSearchCV
    from torchllp.sklearn import LLPClassifier as LLPClassifier

# Public name -> the module that has it, imported when the name is first used: `import torchllp` stays quick.
_PUBLIC = {
    "BagBatch": "torchllp.batch",
    "BagKFold": "torchllp.search",
    "Bags": "torchllp.bags",
    "Compute": "torchllp.config",
    "Config": "torchllp.config",
    "Dataset": "torchllp.data.dataset",
    "Instances": "torchllp.data.dataset",
    "LLPClassifier": "torchllp.sklearn",
    "LLPError": "torchllp.errors",
    "LLPSearchCV": "torchllp.search",
    "Recipe": "torchllp.config",
    "Run": "torchllp.run",
    "check_bags": "torchllp.check",
    "create_method": "torchllp.methods",
    "create_model": "torchllp.models",
    "export_run": "torchllp.export",
    "freeze": "torchllp.engine.frozen",
    "list_datasets": "torchllp.data",
    "list_methods": "torchllp.methods",
    "list_models": "torchllp.models",
    "load_dataset": "torchllp.data",
    "load_exported": "torchllp.export",
    "load_table": "torchllp.data.own",
    "make_bags": "torchllp.data.bag_makers",
    "train": "torchllp.engine.train",
}
__all__ = sorted(_PUBLIC)  # pyrefly: ignore[unsupported]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("torchllp")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'torchllp' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
