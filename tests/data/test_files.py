from pathlib import Path

import pytest

from torchllp.data.files import find_or_download
from torchllp.errors import LLPError


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_failed_download_is_one_sentence(tmp_path: Path, kind: type[Exception]) -> None:
    def download(root: Path) -> None:
        raise kind("Error downloading:\nTried a mirror, got:\nno route\n")

    with pytest.raises(LLPError) as caught:
        find_or_download("pets", tmp_path, [tmp_path], ["cats"], download)
    reason = "Error downloading: Tried a mirror, got: no route"
    assert str(caught.value) == f"pets: the download to {tmp_path} failed: {reason}"


def test_a_download_that_brings_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(LLPError, match="pets: no cats in"):
        find_or_download("pets", tmp_path, [tmp_path], ["cats"], lambda root: None)


def test_the_first_directory_that_has_everything(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in ((first, ["cats"]), (second, ["cats", "dogs"])):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    assert find_or_download("pets", tmp_path, [first, second], ["cats", "dogs"], None) == second
