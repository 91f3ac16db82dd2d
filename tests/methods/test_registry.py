import subprocess
import sys

import pytest

from torchllp.errors import LLPError
from torchllp.methods import METHODS, create_method, list_methods
from torchllp.methods.method import Method


def test_every_name_makes_a_method() -> None:
    for name in list_methods():
        method = create_method(name)
        assert isinstance(method, Method)
        assert set(method.views) <= {"weak", "strong"}
        assert METHODS.entry(name).summary


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(LLPError, match="did you mean 'ahil'"):
        create_method("ahli")


def test_an_unknown_number_gets_the_known_ones() -> None:
    with pytest.raises(LLPError, match=r"'ahil' has no number 'lambda': it takes instance_weight, beta_bag"):
        create_method("ahil", **{"lambda": 1})


def test_listing_needs_no_torch() -> None:
    code = "import sys, torchllp.methods, torchllp.models, torchllp.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
