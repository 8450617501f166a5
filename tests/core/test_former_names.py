"""Names of earlier versions that programs still import."""

import importlib
import sys

import pytest

from elastream.core.metrics import Metric
from elastream.loads.document import load_from


@pytest.mark.parametrize(
    ("former", "present", "thing"),
    [
        ("elastream.model.metrics", "elastream.core.metrics", Metric),
        ("elastream.workload.document", "elastream.loads.document", load_from),
    ],
)
def test_former_name_gives_the_same_thing_with_a_warning(former, present, thing):
    sys.modules.pop(former, None)
    with pytest.deprecated_call(match=f"{former} is now {present}"):
        assert getattr(importlib.import_module(former), thing.__name__) is thing
