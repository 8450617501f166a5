"""Pages from Jinja templates: the run report, and the pages of blocks of comparisons and experiments."""

from functools import cache
from typing import TYPE_CHECKING

from elastream.core.wording import amount, clock, duration_text, money, percent, quantities, quantity, rate_text
from elastream.report.flow import flow_html
from elastream.report.plots import plot_html

if TYPE_CHECKING:
    from jinja2 import Environment

TEXTS = (amount, clock, duration_text, money, percent, quantities, quantity, rate_text)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("elastream.report"),
        autoescape=select_autoescape(["html", "j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {text.__name__: text for text in TEXTS}
    environment.globals |= {"plot_html": plot_html, "flow_html": flow_html}
    return environment


def rendered(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)
