"""`llp predict`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from torchllp.cli import Misuse
from torchllp.cli.console import aside
from torchllp.cli.training import Flag
from torchllp.errors import LLPError

if TYPE_CHECKING:
    from torchllp.data.readers import Found
    from torchllp.run import Run


def predict(
    run: Path,
    instances: Path | None = None,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    images: Path | None = None,
    features: Path | None = None,
    by_bag: Annotated[bool, Flag] = False,
    interval: float | None = None,
    respect_counts: Path | None = None,
    bag_values: Literal["proportions", "counts"] | None = None,
    normalize: Annotated[bool, Flag] = False,
    match_totals: Annotated[bool, Flag] = False,
    weights: Literal["chosen", "last"] | None = None,
    raw: Annotated[bool, Flag] = False,
    data_dir: Path | None = None,
    device: str = "auto",
) -> None:
    """Classify instances with a run's classifier: a row an instance with its class and the classes' probabilities.

    Parameters
    ----------
    run
        Directory of a finished run.
    instances
        What to classify: a table like the one trained on, a folder of images, or a .npy file of uint8 images
        [N, height, width] or [N, channels, height, width]. Default: the test instances of the run's data set; of
        your own data, the instances that it was trained on.
    output
        CSV or Parquet file to write. Default: CSV to standard output.
    images
        Folder that the paths in a table of images start from. Default: that of the run, else that of the table.
    features
        File with the precomputed features of the instances, if their table has them not.
    by_bag
        Write the predicted proportions of each bag too, to a second file beside the output.
    interval
        With --by-bag: bounds between which a bag's true proportion is with this probability, say 0.9.
    respect_counts
        Table of bags whose totals are known: their rows get the likeliest labels that agree with the totals.
    bag_values
        What the numbers of that table are. Default: as in training, else found out.
    normalize
        Rescale its bags whose classes do not sum to what they should.
    match_totals
        Shift the classes' thresholds so that the totals of the run's held-out bags are met: for rare classes, which
        are hardly ever the likeliest.
    weights
        Epoch whose weights are used. Default: the chosen one, the last where none was chosen.
    raw
        Use the weights as optimised, not their moving average.
    data_dir
        Directory of the data sets' files, if not where the run had them.
    device
        auto (a GPU if there is one), cpu, cuda, cuda:1, mps.
    """
    from torchllp.cli.progress import show_progress
    from torchllp.data.bag_table import bag_ids
    from torchllp.predictor import Predictor
    from torchllp.report.predictions import as_csv, bag_columns, check_output, instance_columns, write_columns
    from torchllp.run import Run
    from torchllp.supervision import own_files

    opened = Run.open(run)
    of_bags = output.with_name(f"{output.stem}-by-bag{output.suffix}") if output is not None and by_bag else None
    if output is None and by_bag:
        raise Misuse("--by-bag writes a second file beside the output: name that by -o")
    for path in (output, of_bags):
        if path is not None:
            check_output(path, (instances, features, respect_counts, *own_files(opened.config)))
    if respect_counts is None and (normalize or bag_values):
        raise Misuse("--normalize and --bag-values are about the table of --respect-counts")
    if data_dir is not None and (instances is not None or opened.config.own.is_given):
        raise Misuse("--data-dir is for the test instances of a named data set")
    if interval is not None and (not by_bag or not 0 < interval < 1):
        raise Misuse(f"--interval {interval:g}: it is a probability between 0 and 1, and goes with --by-bag")
    own = opened.config.own
    if instances is None and own.is_given:
        instances = Path(own.instances or own.images or "")
        features = features or (Path(own.features) if own.features else None)
    with show_progress(aside) as observer:
        predictor = Predictor(
            opened,
            weights=weights,
            raw=raw,
            device=device,
            images=images,
            features=features,
            progress=observer.on_images,
        )
        found = predictor.read(instances) if instances is not None else _test_instances(opened, data_dir)
    bag_names = found.columns.bag
    if not bag_names and (by_bag or respect_counts is not None):
        raise Misuse("--by-bag and --respect-counts need a table with the bag of each instance, or a folder of bags")
    log_p, notes = predictor.log_p(found.inputs), found.notes
    labels = (log_p + predictor.offsets if match_totals else log_p).argmax(1).numpy()
    if respect_counts is not None:
        options = {"values": bag_values or own.bag_values, "normalize": normalize or own.normalize}
        labels, more = predictor.respect_counts(log_p, labels, found, respect_counts, **options)
        notes = notes + more

    probabilities, names = log_p.exp().numpy(), predictor.class_names
    ids = {name: found.table.values(name) for name in found.columns.to_copy(found.table)}
    columns = instance_columns(ids, probabilities, labels, names)
    if output is None:
        sys.stdout.write(as_csv(columns))
    else:
        if of_bags is not None:
            level = None if interval is None else (predictor.calibration, interval)
            ids_of_bags = bag_ids(found.table, bag_names)
            write_columns(of_bags, bag_columns(bag_names, ids_of_bags, probabilities, names, level))
            notes = [*notes, f"bags: {of_bags}"]
        write_columns(output, columns)
        notes = [*notes, f"predictions of {len(labels):,} instances: {output}"]
    for note in notes:
        aside.print(note, soft_wrap=True)


def _test_instances(run: "Run", data_dir: Path | None) -> "Found":
    from torchllp.predictor import without_columns
    from torchllp.supervision import load_data

    name, test = run.summary["dataset"], load_data(run.config_with(data_dir).data).test
    if test is None:
        raise LLPError(f"{name} has no test instances: name a file to classify")
    return without_columns(test.inputs, name)
