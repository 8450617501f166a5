"""Names of earlier versions that programs still import."""

import importlib
import sys

import pytest

from elastream.core import metrics


def test_metric_is_found_where_it_was():
    sys.modules.pop("elastream.model.metrics", None)
    with pytest.deprecated_call(match=r"is now elastream.core.metrics"):
        assert importlib.import_module("elastream.model.metrics").Metric is metrics.Metric
