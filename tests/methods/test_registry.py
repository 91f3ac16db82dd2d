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
    with pytest.raises(LLPError, match=r"'ahil' has no option 'lambda': it has instance_weight, beta, beta_bag"):
        create_method("ahil", **{"lambda": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weigh_bags": "no"}, "weigh_bags must be true or false, not 'no'"),
        ({"weigh_bags": 1}, "weigh_bags must be true or false, not 1"),
        ({"beta_bag": "abc"}, "beta_bag must be a finite number, not 'abc'"),
        ({"beta_bag": True}, "beta_bag must be a finite number, not True"),
        ({"instance_weight": float("inf")}, "instance_weight must be a finite number, not inf"),
        ({"instance_weight": -1}, "instance_weight must be 0 or above, not -1"),
        ({"bag_weighting": 3}, "bag_weighting must be a word, not 3"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(options, message: str) -> None:
    with pytest.raises(LLPError, match=message):
        create_method("ahil", **options)


def test_listing_needs_no_torch() -> None:
    code = "import sys, torchllp.methods, torchllp.models, torchllp.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
