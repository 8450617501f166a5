"""A policy in Python by the name that it has on the command line."""

import pytest

from elastream.api.arguments import check_policy
from elastream.errors import InputError
from elastream.policies import Static, Threshold


def test_policy_is_taken_by_its_name() -> None:
    assert check_policy("threshold") == Threshold()
    assert check_policy("static:4") == Static(4)


def test_unknown_name_of_a_policy_is_refused() -> None:
    with pytest.raises(InputError, match="there is no policy 'tresh', did you mean 'threshold'"):
        check_policy("tresh")
