"""Everything that decides a run, as plain values: read from TOML, checked, written back resolved."""

import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torchllp.errors import LLPError
from torchllp.noise import NoiseKind

Options = dict[str, bool | int | float | str]
PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Frozen; unknown keys are errors; attribute docstrings are the help of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class NamedData(Section):
    """A data set of ours."""

    dataset: str = "digits"
    """Data set (see `llp datasets`)."""
    data_dir: str | None = None
    """Directory of the data sets' files. Default: TORCHLLP_DATA, else data."""
    download: bool = False
    """Fetch the files of the data set if they are missing."""
    split: Literal["paper", "500-100"] | None = None
    """Training and test images a class of mini-imagenet: 80 and 20 (the default), or 500 and 100."""
    num_train: PositiveInt | None = None
    """Take the first so many training instances of the data set alone. Default: all."""
    num_test: PositiveInt | None = None
    """Take the first so many of its test instances alone. Default: all."""


class DataConfig(NamedData):
    bags: str = "random"
    """The table of your bags (CSV, Parquet), or how bags are made from labels: random (the paper's), dirichlet (class
    shares of their own), cluster (similar instances), by-feature (like values of --bag-column) or natural (equal ones).
    """
    bag_size: PositiveInt = 16
    """Instances a bag."""
    largest_bag: PositiveInt | None = None
    """Draw the size of each bag between --bag-size and this."""
    concentration: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Of the class shares in dirichlet bags: small makes bags of few classes, large makes them alike."""
    bags_from: str | None = None
    """Run whose bags are taken instead."""
    held_out: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of bags held out to choose the epoch by. Default: the larger of 10 % and 3 bags, none of fewer than 20."""


class OwnInstances(Section):
    """Instances of the user's own, in place of a named data set."""

    instances: str | None = None
    """Table of your instances, one a row: CSV, Parquet, .npy or .npz, or a folder of such files."""
    features: str | None = None
    """Precomputed features (.npy, .npz or a table), row by row those of --instances, whose columns are then none."""
    images: str | None = None
    """Folder of your images: one sub-folder a bag, or with --path-column the folder that its paths start from."""
    bag_column: tuple[str, ...] = ("bag",)
    """Column with the bag's id, in both tables; repeat it if several columns together are the id."""
    label_column: str | None = None
    """Column with an instance's class; makes bags and evaluates, and trains `supervised` alone, or --learn-labels."""
    id_column: tuple[str, ...] = ()
    """Column that is no feature, to be kept in the predictions; can be repeated."""
    feature_column: tuple[str, ...] = ()
    """Column to learn from; can be repeated. Default: all the others."""
    categorical_column: tuple[str, ...] = ()
    """Column whose numbers are codes of categories; can be repeated."""
    path_column: str | None = None
    """Column with the image file of an instance, below --images."""
    image_size: Annotated[int, Field(ge=4, le=1024)] = 64
    """Height and width that your images are brought to."""
    flip: bool = False
    """Whether your images may be mirrored left to right."""

    @property
    def is_given(self) -> bool:
        return self.instances is not None or self.images is not None

    @property
    def is_table(self) -> bool:
        """Whether the instances are rows of features, not images."""
        return self.is_given and self.images is None and self.path_column is None


class OwnConfig(OwnInstances):
    """Instances of the user's own and the table of their bags."""

    test: str | None = None
    """Labelled instances to test on: a table like --instances, or a folder with one sub-folder of images a class."""
    class_column: tuple[str, ...] = ()
    """Column of a class in the bag table; can be repeated. Default: all but the id and the size."""
    size_column: str | None = None
    """Column with the bag's number of instances in the bag table, to be checked. Default: size, if there is one."""
    bag_values: Literal["proportions", "counts"] | None = None
    """What the numbers of the bag table are. Default: found out."""
    normalize: bool = False
    """Rescale bags whose classes do not sum to what they should, instead of refusing them."""
    learn_labels: bool = False
    """Learn from the classes in --label-column too, where an instance has one."""
    unlabelled: Literal["keep", "drop"] | None = None
    """What to do with instances whose bag is not in the bag table. Default: refuse."""
    bag_noise: NoiseKind | None = None
    """How the reported numbers differ from the true ones: gaussian or laplace (discrete) noise, or rounding."""
    bag_noise_scale: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation or rounding step, in the unit of the table, or epsilon of the laplace noise."""
    bag_noise_column: str | None = None
    """Column of the bag table with that number for each bag; an empty one is an exact bag."""


class Named(Section):
    """A method or a model: its name and the options that differ from its defaults."""

    name: str
    options: Options = {}


class Recipe(Section):
    epochs: PositiveInt = 150
    """Epochs; one is a pass over the training bags."""
    steps_per_epoch: PositiveInt | None = None
    """Steps an epoch, if it is not to be one pass over the bags."""
    instances_per_step: PositiveInt = 128
    """Whole bags are added to a step up to this number of instances."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with Nesterov momentum 0.9 (the paper's), or AdamW."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Learning rate at the start; 0.1 is for SGD, AdamW wants less."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-4
    """Weight decay, on everything but normalisation layers."""
    schedule: Literal["7pi/16", "pi/2"] = "7pi/16"
    """The learning rate falls as the cosine of 0 to this angle: the paper's, or the reference code's (down to 0)."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the averaged weights, which are the ones evaluated; warmed up."""
    choose_by: Literal["bag_kl", "bag_mae", "count_score"] = "bag_kl"
    """How held-out bags choose the epoch: by divergence or mean absolute error of the shares, or by how probable their
    counts are."""
    randaugment: Literal["random", "fixed"] = "random"
    """Strong view of images: two operations of random strength, or two at level 10 as in the reference code."""
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Weak view of table rows: standard deviation of the noise on their standardised numbers."""
    corruption: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Strong view of table rows: share of the columns that take the value of another row."""


class PretrainingRecipe(Recipe):
    """What is different where no bag is looked at."""

    epochs: PositiveInt = 200
    """Epochs; one is a pass over the training instances."""
    instances_per_step: PositiveInt = 256
    """Instances a step, which are compared with one another."""


class Compute(Section):
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, mps."""
    threads: PositiveInt | None = None
    """CPU threads; a run is repeated bit for bit only with the same number. Default: PyTorch's."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 autocast on a GPU that has it, float16 on another GPU, float32 on the CPU."""
    channels_last: bool = True
    """Memory format of images; faster on most devices."""
    compile: bool = False
    """Compile the model by torch.compile: slower to start, faster to run on a GPU."""
    stream: bool | None = None
    """Leave the instances on disk or in main memory, and read those of a step while the one before is trained on.
    Default: if they take more than half of the device's free memory."""
    chunk_size: PositiveInt | None = None
    """Instances that go through the network at a time (dllp, ahil), for bags larger than memory. Default: a step's."""
    sync_batch_norm: bool = False
    """Batch norm over the instances of all processes, where there are several: slower, and the same for any number."""


class Config(Section):
    """A run, resolved."""

    data: DataConfig = DataConfig()
    own: OwnConfig = OwnConfig()
    method: Named = Named(name="ahil")
    model: Named = Named(name="small-cnn")
    recipe: Recipe = Recipe()
    compute: Compute = Compute()
    seed: Annotated[int, Field(ge=0)] = 0
    init_from: str | None = None
    """Run whose weights are the first ones."""
    freeze: bool = False
    """Train a new head alone, on the features of the run in `init_from`, computed once."""

    def to_toml(self) -> str:
        """This config as TOML, whole; values that are None are left out.

        >>> print(Config().to_toml().splitlines()[0])
        seed = 0
        """
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    @classmethod
    def layered(cls, *layers: Mapping[str, Any]) -> "Config":
        """A config of its defaults and these layers, each over the ones before it, key by key.

        A layer that names another method (or model) drops the options that the layers before had for theirs.

        >>> Config.layered({"recipe": {"lr": 0.1, "epochs": 5}}, {"recipe": {"epochs": 9}}).recipe.epochs
        9
        """
        try:
            return cls.model_validate(reduce(_over, layers, cls().model_dump()))
        except ValidationError as error:
            raise LLPError(explain(error)) from error

    @classmethod
    def read(cls, path: Path) -> "Config":
        """The config in a TOML file; what is wrong in it is told with the name of the file."""
        content = read_toml(path)
        try:
            return cls.layered(content)
        except LLPError as error:
            raise LLPError(f"{path}: {error}") from error


def _over(before: Any, after: Any) -> Any:
    """``after`` over ``before``, key by key where both are tables."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    if "name" in after and after["name"] != before.get("name"):
        before = {}  # options belong to the method or model that they were said for
    return {**before, **{key: _over(before.get(key), value) for key, value in after.items()}}


def explain(error: ValidationError) -> str:
    """One sentence for the first thing pydantic found wrong.

    >>> try:
    ...     Recipe(lr=-1)
    ... except ValidationError as error:
    ...     explain(error)
    'lr: input should be greater than 0, not -1'
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"there is no setting {where!r}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{where}: {message}, not {first['input']!r}"


def plain_value(text: str) -> bool | int | float | str:
    """A word of the command line as a plain value.

    >>> [plain_value(text) for text in ("true", "3", "3.0", "three")]
    [True, 3, 3.0, 'three']
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, as a layer for :meth:`Config.layered`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LLPError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise LLPError(f"{path}: not a TOML file ({error})") from error
