"""`llp pretrain`, and what is trained on its features, by the real command."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commands import here, llp
from own_tables import OURS, RECIPE, Work
from torchllp import Run
from torchllp.engine.checkpoint import load_state

PRETRAIN = ["--model", "small-cnn", "--epochs", "3", "--threads", "1"]
TRAIN = ["--epochs", "4", "--threads", "1"]

KILLED = """
import os, signal, sys
from pathlib import Path
from torchllp.config import Config, read_toml
from torchllp.engine.train import Observer
from torchllp.job import Job, start
from torchllp.pretraining import Pretraining

class Kill(Observer):
    def on_step(self, epoch, step, num_steps):
        if epoch == 2 and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)

kind = {"Job": Job, "Pretraining": Pretraining}[sys.argv[3]]
start(Config.layered(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]), observer=Kill(), kind=kind)
"""


def kill(run: Run, path: Path, kind: str) -> None:
    """Start the same run anew, in a process that is killed in its third epoch."""
    command = [sys.executable, "-c", KILLED, str(run.config_file), str(path), kind]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    assert load_state(Run.open(path).checkpoint_file)["state"]["epochs_done"] == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-training on digits, and a head that was trained on its features."""
    path = tmp_path_factory.mktemp("pretrain")
    (path / "freeze.toml").write_text('freeze = true\ninit_from = "features"\n')
    (path / "one.csv").write_text("bag,x,y\n1,0.5,0.5\n")
    result = llp("pretrain", *PRETRAIN, "--run", "features", cwd=path)
    assert result.returncode == 0, result.stderr
    assert "simclr on digits: 1437 instances" in result.stdout
    assert "go on by: llp train --init-from features --freeze --method flmm" in result.stdout
    result = here("train", "--method", "flmm", "--init-from", "features", "--freeze", *TRAIN, "--run", "head", cwd=path)
    assert result.returncode == 0, result.stderr
    assert "all but the head, which alone is trained, from " in result.stdout
    return path


def test_what_is_in_a_pretraining(folder: Path) -> None:
    run = Run.open(folder / "features")
    assert run.summary["metrics"]["last"]["train/contrast_accuracy"] > 0
    assert run.summary["num_instances"] == 1437 and "accuracy" not in run.summary
    assert run.description["data"]["class_names"] == []
    assert (run.config.recipe.instances_per_step, run.config.recipe.lr) == (256, 0.1)
    assert run.curves_file.read_bytes().startswith(b"\x89PNG")
    assert not run.bags_file.exists()
    assert json.loads(run.data_file.read_text())["labels"] is None


def test_only_the_head_differs(folder: Path) -> None:
    before, after = (Run.open(folder / name).load_model() for name in ("features", "head"))
    assert all(torch.equal(tensor, after.body.state_dict()[name]) for name, tensor in before.body.state_dict().items())
    assert after.head.weight.shape == (10, 64)
    config = Run.open(folder / "head").config
    assert config.model.name == "small-cnn"  # that of the run
    assert (config.recipe.optimizer, config.recipe.lr, config.recipe.noise) == ("adamw", 1e-2, 0.0)


def test_every_set_of_weights_of_a_frozen_run_is_a_whole_classifier(folder: Path) -> None:
    run = Run.open(folder / "head")
    x = torch.randn(20, 1, 8, 8)
    exported = run.load_model()(x)
    chosen = run.description["weights"]["epoch_is"]
    torch.testing.assert_close(run.load_model(chosen)(x), exported, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(run.load_model("last", raw=True)(x), exported, rtol=1e-2)
    accuracy = here("evaluate", folder / "head", "--weights", "last")
    assert f"{run.summary['accuracy']['last']:.4f}" in accuracy.stdout


@pytest.mark.parametrize("method", ["dllp", "ahil", "supervised"])
def test_other_methods_start_from_features_too(method: str, folder: Path, tmp_path: Path) -> None:
    for name, flags in (("frozen", ["--freeze"]), ("fine-tuned", [])):
        flags = ["--method", method, "--init-from", folder / "features", *flags, "--run", tmp_path / name]
        result = here("train", *flags, "--epochs", "2", "--threads", "1")
        assert result.returncode == 0, result.stderr
    before, frozen, tuned = (
        Run.open(path).load_model().body[0].weight
        for path in (folder / "features", tmp_path / "frozen", tmp_path / "fine-tuned")
    )
    assert torch.equal(before, frozen) and not torch.equal(before, tuned)
    assert torch.nn.functional.cosine_similarity(before.flatten(), tuned.flatten(), 0) > 0.5  # it began there


def test_a_killed_pretraining_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    whole = Run.open(folder / "features")
    kill(whole, tmp_path / "killed", "Pretraining")
    refused = here("train", "--resume", tmp_path / "killed")
    assert refused.returncode == 1 and "it is for `llp pretrain`" in refused.stderr
    result = here("pretrain", "--resume", tmp_path / "killed")
    assert result.returncode == 0, result.stderr
    assert "continuing after epoch 2" in result.stdout
    assert Run.open(tmp_path / "killed").model_file.read_bytes() == whole.model_file.read_bytes()


def test_a_killed_frozen_run_resumes_exactly_without_its_source(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "folder"
    shutil.copytree(folder, copy)
    config = (copy / "head" / "config.toml").read_text().replace(str(folder), str(copy))
    (copy / "head" / "config.toml").write_text(config)
    whole = Run.open(copy / "head")
    kill(whole, tmp_path / "killed", "Job")
    shutil.rmtree(copy / "features")
    result = here("train", "--resume", tmp_path / "killed")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "killed").model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["predict", "features"], 1, "features: was pre-trained and knows no classes"),
        (["evaluate", "features"], 1, "features: was pre-trained and knows no classes"),
        (["train", "--method", "simclr"], 2, "simclr learns features and no classes: it is for `llp pretrain`"),
        (["train", "--compare", "simclr"], 2, "simclr learns features and no classes"),
        (["train", "--freeze"], 2, "--freeze trains a head on the features of a run: name it by --init-from"),
        (["train", "--init-from", "features", "--freeze", "--preset", "paper"], 1, "trains whole networks"),
        (["train", "--init-from", "features", "--freeze", "--randaugment", "fixed"], 2, "--randaugment is for images"),
        (["train", "--init-from", "features", "--model", "mlp"], 1, "its model (small-cnn) is not the one"),
        (["train", "--noise", "0.1"], 2, "--noise is for tables of your own, by --instances, and for --freeze"),
        (["train", "--resume", "head", "--freeze"], 2, "leave the other options out"),
        (["pretrain", "--resume", "head"], 1, "flmm learns from bags: it is for `llp train`"),
        (["pretrain", "--resume", "features", "--seed", "0"], 2, "leave the other options out"),
        (["train", "--resume", "head", "--seed", "0"], 2, "leave the other options out"),
        (["train", "--resume", "head", "--overwrite"], 2, "leave the other options out"),
        (["pretrain", "--run", "features"], 1, "features: there is something here already"),
        (["pretrain", "--set", "temperature=0", "--run", "x"], 1, "temperature must be above 0, not 0"),
        (["pretrain", "--bag-size", "3"], 2, "--bag-size"),
        (["pretrain", "--bag-column", "x"], 2, "--bag-column is about instances of your own"),
        (["pretrain", "--instances", "nope.csv"], 1, "nope.csv"),
        (["pretrain", "--randaugment", "fixed"], 2, "--randaugment is for strong views"),
        (["pretrain", "--compile"], 2, "--compile does nothing here"),
        (["pretrain", "--model", "linear"], 1, "the model 'linear' has no features to learn"),
        (["pretrain", "--config", "freeze.toml"], 1, "`freeze` leaves nothing to pre-train"),
        (["pretrain", "--instances", "one.csv"], 1, "one: one instance has none to be compared with"),
        (["train", "--bags-from", "features"], 1, "features: was pre-trained, and has no bags"),
        (["train", "--init-from", "features", "--instances", "one.csv", "--bags", "one.csv"], 1, "take 'mlp' for them"),
        (["train", "--method", "llpfc", "--bag-size", "200", "--run", "x"], 1, "llpfc needs a bag"),
        (["train", "--compare", "llpfc", "--bag-size", "200", "--run", "x"], 1, "llpfc needs a bag"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(arguments: list[str], code: int, message: str, folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    result = here(*arguments, cwd=folder)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("llp: ")
    assert {path.name for path in folder.iterdir()} == before


def test_features_of_a_table_without_bags_or_labels(work: Work, tmp_path: Path) -> None:
    flags = ["--instances", work.path / "rows.csv", *OURS]
    result = here("pretrain", *flags, "--epochs", "2", *RECIPE, "--run", tmp_path / "features")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "features").config.model.name == "mlp"
    bags = ["--bags", work.path / "bags.csv", "--init-from", tmp_path / "features", "--freeze", "--epochs", "20"]
    result = here("train", *flags, *bags, "--threads", "1", "--run", tmp_path / "head")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "head").summary["accuracy"]["last"] > 0.8
    result = here("predict", tmp_path / "head", work.path / "rows.csv", "-o", tmp_path / "predictions.csv")
    assert result.returncode == 0, result.stderr
    others = ["--instances", work.path / "rows.csv", "--bags", work.path / "bags.csv", "--label-column", "y"]
    result = here("train", *others, "--init-from", tmp_path / "features", "--run", tmp_path / "other")
    assert result.returncode == 1 and "was trained on other columns" in result.stderr


def test_a_table_with_other_categories_is_refused(work: Work, tmp_path: Path) -> None:
    """Their weights would mean something else."""
    flags = [*OURS, "--epochs", "1", *RECIPE]
    assert (
        here("pretrain", "--instances", work.path / "rows.csv", *flags, "--run", tmp_path / "features").returncode == 0
    )
    other = (work.path / "rows.csv").read_text().replace("blue", "teal")
    (tmp_path / "other.csv").write_text(other)
    bags = ["--bags", work.path / "bags.csv", "--init-from", tmp_path / "features", "--run", tmp_path / "run"]
    result = here("train", "--instances", tmp_path / "other.csv", *bags, *flags)
    assert result.returncode == 1
    assert "was trained on other categories of column 'colour' than those of other" in result.stderr


def test_a_pretraining_is_continued_with_the_same_model(folder: Path, tmp_path: Path) -> None:
    result = here("pretrain", "--init-from", folder / "features", "--epochs", "1", "--run", tmp_path / "more")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "more").config.model.name == "small-cnn"


def test_features_of_a_folder_of_images(tmp_path: Path) -> None:
    """Without sub-folders: which image is in which bag does not matter."""
    from PIL import Image
    from sklearn.datasets import load_digits

    (tmp_path / "images").mkdir()
    for i, pixels in enumerate(load_digits().images[:40]):
        Image.fromarray((15 * pixels).astype("uint8")).save(tmp_path / "images" / f"{i}.png")
    flags = ["--images", tmp_path / "images", "--image-size", "8", *PRETRAIN]
    result = here("pretrain", *flags, "--run", tmp_path / "features")
    assert result.returncode == 0, result.stderr
    assert Run.open(tmp_path / "features").summary["num_instances"] == 40
