"""Tables on narrow terminals: no figure is lost, whatever the width."""

import io
import re

import pytest
from rich.console import Console

from elastream.cli.tables import print_table
from elastream.evaluation.page import Table

HEADER = (
    "policy",
    "cost",
    "in time",
    "hosts (mean)",
    "hosts (peak)",
    "leases",
    "early releases",
    "left waiting",
    "remarks",
)
FIGURES = ("1,234.56", "99.12% MISSED", "123.45", "1,000", "12,345", "6,789", "22,000,000")
REMARK = "cannot size: processed rate of 'clicks' unknown for 45 s"
TABLE = Table(
    "shop, simulated: 12,345,678 records in 11.2 h (19.3k/s on average), target 95.0% in time (within 30.0 s)",
    HEADER,
    (("btu:scaling_threshold=100,max_duration=2", *FIGURES, REMARK), ("static", *FIGURES, "")),
    (False, None),
)


def printed(width: int | None) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=width, force_terminal=width is not None, color_system=None), TABLE)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 250])
def test_no_figure_is_lost_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    for figure in FIGURES:
        assert len(re.findall(rf"(?<![\w.,]){re.escape(figure)}(?![\w.,])", text)) == 2, (figure, text)
    together = re.sub(r"\s", "", text)
    assert "btu:scaling_threshold" in together or "btu:" in text


def test_each_part_names_the_rows_again() -> None:
    assert printed(80).count("static") > 1


def test_piped_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (row,) = [line for line in printed(None).splitlines() if line.startswith("btu")]
    assert all(figure in row for figure in (*FIGURES, REMARK))


@pytest.mark.parametrize("width", [40, 200])
def test_column_without_a_name_fits_a_terminal(width):
    out = io.StringIO()
    table = Table("figures", ("", "b"), (("one", "2"),))
    print_table(Console(file=out, width=width, force_terminal=True, color_system=None), table)
    assert "one" in out.getvalue()
