"""Prints docs/reference/settings.md, made from the declarations of run settings."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from elastream.core.scaling import NO_RULES
from elastream.documents.dataflow import document_keys
from elastream.settings import AutopilotSettings, CommandSettings, Flag, RunSettings, SimulateSettings, settings_of

INTRODUCTION = """\
# Settings

Every setting is declared once, in `elastream.settings`. Keywords of `run`, `simulate` and `Autopilot`, options of the
command line and keys at the top of a document derive from these declarations, and so does this page
(`scripts/settings_page.py`). A new setting is one field there. A *duration* is seconds, or text such as `"2s"`.
"""
PARTS: tuple[tuple[str, str, type, type], ...] = (
    ("run", "`run(flow, ...)`; the option is one of `elastream run`.", RunSettings, object),
    ("elastream run", "Options beside those of `run`.", CommandSettings, RunSettings),
    ("simulate", "`simulate(flow, policies, ...)`; the option is one of `elastream simulate`.", SimulateSettings, object),
    ("Autopilot", "`Autopilot(spark, ...)`.", AutopilotSettings, object),
)


def page() -> Iterator[str]:
    """The lines of the page."""
    described: dict[str, str] = {}
    yield INTRODUCTION
    keys = document_keys().model_fields
    for title, about, declaring, without in PARTS:
        yield f"## {title}\n\n{about}\n"
        yield "setting | default | value | what it is | option | key"
        yield "---|---|---|---|---|---"
        left_out = {each.name for each in fields(without)} if without is not object else set()
        defaults = {each.name: each.default for each in fields(declaring)}
        options = declaring is not AutopilotSettings
        same: list[str] = []
        for name, setting in sorted(settings_of(declaring).items(), key=lambda each: defaults[each[0]] is not MISSING):
            if name in left_out:
                continue
            flag = "--setting" if name == "settings" else f"--{name.replace('_', '-')}"
            if isinstance(setting.kind, Flag) and setting.kind.switch:
                flag = setting.kind.switch
            option = f"`{flag}`" if setting.group and options else ""
            key = "yes" if name in keys and declaring is RunSettings else ""
            if described.get(name) == setting.help:
                same.append(f"`{name}`")
                continue
            described[name] = setting.help
            yield f"`{name}` | {shown(defaults[name])} | {setting.kind.unit} | {setting.help} | {option} | {key}".rstrip()
        yield f"\nAs above: {', '.join(same)}.\n" if same else ""


def shown(default: Any) -> str:
    """A default as the table shows it."""
    if default is MISSING:
        return "required"
    if default is None or default in ((), "", NO_RULES):
        return ""
    return f"`{default!r}`"


if __name__ == "__main__":
    print("\n".join(page()).rstrip())
