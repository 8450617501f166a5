"""Which extra of the package brings a library that is missing: `pip install elastream` alone has what Autopilot needs."""

__all__ = ["EXTRAS", "missing"]

EXTRAS = {
    "numba": "simulator",
    "scipy": "simulator",
    "threadpoolctl": "simulator",
    "ortools": "solver",
    "fastapi": "services",
    "uvicorn": "services",
    "httpx": "services",
    "plotly": "pages",
    "jinja2": "pages",
    "prometheus_client": "metrics",
    "sklearn": "learned",
    "statsmodels": "learned",
    "river": "learned",
    "pygad": "search",
    "statsforecast": "forecast",
    "kafka": "kafka",
    "fsspec": "remote",
    "requests": "remote",
    "opentelemetry": "tracing",
}
"""The extra by the library's import name."""


def missing(error: ImportError, what: str = "this") -> str:
    """What to install where `error` is for want of an extra's library, as a sentence; empty where it is not."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return ""
    return f"{what} needs {library}: pip install 'elastream[{EXTRAS[library]}]'"
