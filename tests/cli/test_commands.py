import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import SHORT, here, llp
from torchllp import Run, load_dataset


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("runs") / "demo"
    result = llp("train", "--run", path, "--compare", "supervised", *SHORT)
    assert result.returncode == 0, result.stderr
    return path, result.stdout


def test_training_ends_with_a_table(demo: tuple[Path, str]) -> None:
    path, output = demo
    lines = output.splitlines()
    header = next(line for line in lines if line.startswith("method"))
    epochs = ["last", "epoch", "chosen", "epoch", "oracle", "epoch"]
    assert header.split() == ["method", "bag", "size", *epochs, "gap", "run"]
    rows = {line.split()[0]: line.split() for line in lines[lines.index(header) + 1 :] if " % " in line}
    assert rows.keys() == {"ahil", "supervised"}
    for name, run in (("ahil", Run.open(path)), ("supervised", Run.open(path.with_name("demo-supervised")))):
        accuracy = run.summary["accuracy"]
        shown = [f"{100 * accuracy[epoch]:.2f}" for epoch in ("last", "chosen", "oracle")]
        assert rows[name][1] == "16"
        assert [rows[name][i] for i in (2, 4, 6)] == shown
        assert float(rows[name][8]) == pytest.approx(100 * (accuracy["oracle"] - accuracy["chosen"]), abs=0.01)
    assert sum("epoch " in line and "test/accuracy" in line for line in lines) == 8  # one line an epoch in a pipe
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_both_runs_have_the_same_bags_and_recipe(demo: tuple[Path, str]) -> None:
    one, other = (Run.open(demo[0].with_name(name)) for name in ("demo", "demo-supervised"))
    assert one.summary["bags"] == other.summary["bags"]
    assert one.config.recipe == other.config.recipe
    assert one.summary["steps"] == other.summary["steps"]


def test_a_method_is_compared_with_itself_by_other_options(tmp_path: Path) -> None:
    flags = ["--epochs", "1", "--set", "weigh_bags=false", "--compare", "ahil", "--bag-size", "64", "--run", "a b"]
    result = here("train", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ahil (weigh_bags=False)" in result.stdout
    assert Run.open(tmp_path / "a b").config.method.options == {"weigh_bags": False}
    assert Run.open(tmp_path / "a b-ahil").config.method.options == {}


@pytest.mark.parametrize(
    ("bag_size", "method", "said"), [(64, "dllp", False), (65, "dllp", True), (65, "supervised", False)]
)
def test_steps_of_a_single_bag_are_warned_of(bag_size: int, method: str, said: bool, tmp_path: Path) -> None:
    flags = ["--bag-size", bag_size, "--method", method, "--model", "linear", "--epochs", "1", "--run", "run"]
    result = here("train", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    sentence = "most steps hold a single bag, from which networks learn slowly or not at all: instances_per_step of 130"
    assert (sentence in " ".join(result.stdout.split())) == said


def test_evaluate_agrees_with_the_summary(demo: tuple[Path, str]) -> None:
    result = here("evaluate", demo[0], "--json")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    chosen = Run.open(demo[0]).summary["metrics"]["chosen"]
    assert numbers["accuracy"] == pytest.approx(chosen["test/accuracy"])
    assert numbers["held-out bag_kl"] == pytest.approx(chosen["held_out/bag_kl"], rel=1e-4)
    assert {"macro F1", "calibration error", "held-out bag_mae"} <= numbers.keys()
    shown = here("evaluate", demo[0], "--weights", "last", "--raw").stdout
    assert "macro F1" in shown and "recall" in shown


def test_predict_writes_classes_and_probabilities(demo: tuple[Path, str], tmp_path: Path) -> None:
    output = tmp_path / "predictions.csv"
    result = here("predict", demo[0], "-o", output)
    assert result.returncode == 0 and result.stdout == ""
    rows = list(csv.DictReader(io.StringIO(output.read_text())))
    test = load_dataset("digits").test
    assert test is not None and test.labels is not None
    right = [row["class"] == str(label) for row, label in zip(rows, test.labels.tolist(), strict=True)]
    assert np.mean(right) == pytest.approx(Run.open(demo[0]).summary["accuracy"]["chosen"])
    probabilities = np.array([[float(row[f"p({c})"]) for c in range(10)] for row in rows])
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-4)
    assert [row["class"] for row in rows] == probabilities.argmax(1).astype(str).tolist()


def test_predict_reads_images_from_a_file(demo: tuple[Path, str], tmp_path: Path) -> None:
    test = load_dataset("digits").test
    assert test is not None
    np.save(tmp_path / "images.npy", test.inputs[:5, 0].numpy())
    mine, all_rows = (here("predict", demo[0], *file).stdout.splitlines() for file in ([tmp_path / "images.npy"], []))
    assert len(mine) == 6 and mine[0] == all_rows[0]
    for row, other in zip(mine[1:], all_rows[1:6], strict=True):
        assert list(map(float, row.split(","))) == pytest.approx(list(map(float, other.split(","))), abs=1e-5)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 9, 9), np.uint8), "trained on images of shape (1, 8, 8), not (1, 9, 9)"),
        (np.zeros((2, 8, 8)), "images are uint8 values, not float64"),
        (None, "not a .npy file of numbers"),
    ],
)
def test_images_that_do_not_fit(demo: tuple[Path, str], tmp_path: Path, array, message: str) -> None:
    path = tmp_path / "images.npy"
    if array is None:
        path.write_text("no array")
    else:
        np.save(path, array)
    result = here("predict", demo[0], path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"llp: {path}: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trian"], 2, 'Did you mean "train"?'),
        (["train", "--epoch", "3"], 2, "Did you mean --epochs?"),
        (["train", "--epochs", "many"], 2, "many"),
        (["train", "--lr", "-1"], 2, "--lr: input should be greater than 0"),
        (["train", "--schedule", "linear"], 2, "linear"),
        (["evaluate"], 2, "run"),
        (["train", "--method", "ahli"], 1, "unknown method 'ahli': did you mean 'ahil'?"),
        (["train", "--model", "wrn-27-2"], 1, "depth"),
        (["train", "--dataset", "digit"], 1, "unknown data set 'digit': did you mean 'digits'?"),
        (
            ["train", "--dataset", "cifar10", "--data-dir", "no"],
            1,
            "cifar10: no data_batch_1 in ",
        ),
        (["train", "--dataset", "mini-imagenet", "--data-dir", "no"], 1, "mini-imagenet"),
        (["train", "--split", "paper"], 1, "digits has one split only"),
        (["train", "--preset", "papper"], 1, "unknown preset 'papper': did you mean 'paper'?"),
        (["train", "--set", "weigh_bags=no"], 1, "weigh_bags must be true or false, not 'no'"),
        (["train", "--compare", "ahil"], 2, "that is what is trained already"),
        (
            ["train", "--bags-from", "x", "--bag-size", "3"],
            2,
            "--bag-size has nothing to do: --bags-from",
        ),
        (["check", "--figure", "nowhere/bags.png"], 1, "nowhere/bags.png: there is no such directory"),
        (["train", "--run", "/proc/run"], 1, "/proc/run: "),
        (["train", "--set", "beta_bag"], 2, "--set takes NAME=VALUE, not 'beta_bag'"),
        (["train", "--set", "beta_bga=1"], 1, "method 'ahil' has no option 'beta_bga'"),
        (["train", "--compare", "nope"], 1, "unknown method 'nope'"),
        (["train", "--config", "nope.toml"], 1, "nope.toml: there is no such file"),
        (["train", "--resume", "nope"], 1, "nope: not a run"),
        (["train", "--resume", "nope", "--preset", "paper"], 2, "leave the other options out"),
        (["train", "--resume", "nope", "--epochs", "3"], 2, "leave the other options out"),
        (["train", "--init-from", "nope"], 1, "nope: not a run"),
        (["evaluate", "nope"], 1, "nope: not a run"),
        (["predict", "nope"], 1, "nope: not a run"),
        (["methods", "nope"], 1, "unknown method 'nope'"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = here(*arguments, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("llp: ")
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = llp("--debug", "train", "--resume", "nope", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "LLPError" in result.stderr


def test_a_mix_of_pieces_by_flags(tmp_path: Path) -> None:
    pieces = ["--bag-term", "gaussian", "--pseudo-labels", "assignment", "--weights", "threshold"]
    flags = ["--method", "custom", *pieces, "--set", "threshold=0.3", "--epochs", "1", "--threads", "1", "--run", "run"]
    result = here("train", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    options = {"bag_term": "gaussian", "pseudo_labels": "assignment", "weights": "threshold", "threshold": 0.3}
    assert Run.open(tmp_path / "run").config.method.options == options
    wrong = here("train", "--method", "rot", "--weights", "none", cwd=tmp_path)
    assert wrong.returncode == 1 and "method 'rot' has no option 'weights'" in wrong.stderr


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[recipe]\nepochs = 2\nlr = 0.5\n[method.options]\nbeta_bag = 7.0\n")
    flags = ["--config", "mine.toml", "--epochs", "1", "--bag-size", "64", "--model", "mlp", "--seed", "3"]
    result = here("train", *flags, "--set", "weigh-instances=false", "--set", "beta_instance=2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    config = Run.open(tmp_path / "runs" / "digits-ahil-bag64-seed3").config
    assert (config.recipe.epochs, config.recipe.lr, config.data.bag_size, config.seed) == (1, 0.5, 64, 3)
    assert config.method.options == {"beta_bag": 7.0, "weigh_instances": False, "beta_instance": 2}


def test_check_says_what_bags_can_teach(tmp_path: Path) -> None:
    result = here("check", "--bag-size", "512", "--figure", "bags.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stdout.splitlines() if line.startswith("!")]
    assert len(warnings) == 2 and "fewer bags than classes" in warnings[0] and "2 of 10" in warnings[1]
    assert (tmp_path / "bags.png").read_bytes().startswith(b"\x89PNG")


def test_a_terminal_shows_warnings_and_a_bar(tmp_path: Path) -> None:
    """By a pseudo-terminal, as a person would see it."""
    command = [sys.executable, "-m", "torchllp", "train", "--bag-size", "512", "--epochs", "1"]
    code = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, cwd=tmp_path, timeout=120)
    assert result.returncode == 0
    screen = result.stdout.decode(errors="replace")
    assert "rank of the proportions: 2 of 10" in screen
    assert "epoch 1/1" in screen and "Accuracy on the test instances of digits" in screen


def test_training_warns_of_bags_that_teach_little(tmp_path: Path) -> None:
    result = here("train", "--bag-size", "512", "--epochs", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "rank of the proportions: 2 of 10: some classes always come in the same mixture" in result.stdout


@pytest.mark.skipif("TORCHLLP_DATA" not in os.environ, reason="TORCHLLP_DATA does not say where Fashion-MNIST is")
def test_real_fashion_mnist(tmp_path: Path) -> None:
    flags = ["--dataset", "fashion-mnist", "--bag-size", "64", "--epochs", "1", "--steps-per-epoch", "2"]
    result = here("train", *flags, "--model", "linear", "--threads", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    run = Run.open(tmp_path / "runs" / "fashion-mnist-ahil-bag64-seed0")
    assert run.summary["num_bags"] == 937 and run.summary["num_held_out"] == 94
    assert run.description["data"]["class_names"][9] == "Ankle boot"
    assert run.description["data"]["warnings"] == []
    assert run.config.data.data_dir == str(Path(os.environ["TORCHLLP_DATA"]).absolute())
    assert here("predict", run.path, "-o", "p.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "p.csv").read_text().count("\n") == 10_001
    elsewhere = here("evaluate", run.path, "--data-dir", "nowhere")
    assert elsewhere.returncode == 1 and "nowhere/FashionMNIST" in elsewhere.stderr


@pytest.mark.parametrize("command", ["methods", "models", "datasets"])
def test_listings(command: str) -> None:
    result = llp(command)
    assert result.returncode == 0
    expected = {"methods": ["ahil", "dllp", "supervised"], "models": ["small-cnn", "wrn-28-2"], "datasets": ["digits"]}
    assert all(name in result.stdout for name in expected[command])


def test_a_methods_numbers_are_shown() -> None:
    output = llp("methods", "ahil").stdout
    assert "beta_bag" in output and "0.5" in output


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["train", "-h"], ["predict", "--help"]])
def test_help_at_every_level_needs_no_torch(arguments: list[str]) -> None:
    code = "import sys; from torchllp.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert "Usage: llp" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 False"


def test_version() -> None:
    from importlib.metadata import version

    assert llp("--version").stdout.strip() == version("torchllp")


def test_completion_can_be_generated() -> None:
    from torchllp.cli import app

    assert "llp" in app.generate_completion(shell="bash")
