"""Replay of a run under another policy, by a child process of the page.

| state | request | child ends | page closes |
| --- | --- | --- | --- |
| idle, shown | running | | idle |
| running | refused | shown | idle, child killed |
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastream.core.wording import counted, duration_text, money, percent
from elastream.errors import InputError
from elastream.report.template import rendered

# Module of the child, which simulates: the page has no simulator.
CHILD = "elastream.evaluation.what_if"
# Policies that replay a run, by their words on the page.
POLICIES = {
    "horizon": "horizon",
    "threshold": "threshold",
    "static": "a fixed fleet",
    "dra": "dynamic allocation",
    "hpa": "HPA",
    "ds2": "DS2",
    "flink": "Flink's autoscaler",
}
MOST_HOSTS = 10_000


class WhatIf:
    """The newest replay of a run. changed: called when `html` changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self.html = ""

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, root: Path, fields: Mapping[str, Any]) -> None:
        """Start a replay. Raises InputError for a wrong policy or number."""
        policy, hosts = str(fields.get("policy", "")), str(fields.get("max_hosts") or "")
        if policy not in POLICIES:
            raise InputError(f"{policy!r} is not a policy of this page: {', '.join(POLICIES)}")
        if not (hosts.isascii() and hosts.isdecimal() and 0 < int(hosts) <= MOST_HOSTS):
            raise InputError(f"hosts is {hosts!r}; it must be a whole number from 1 to {MOST_HOSTS:,}")
        at_most = f"{POLICIES[policy]} with at most {counted(int(hosts), 'host')}"
        if policy == "static":
            at_most, policy = f"{POLICIES[policy]} of {counted(int(hosts), 'host')}", f"static:{hosts}"
        self._show(about=f"Replaying the last hour under {at_most}.")
        self._task = asyncio.create_task(self._run(at_most, str(root), policy, hosts))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, about: str, *arguments: str) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", CHILD, *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            self._show(about=f"No replay under {about}: {error.strerror or error}.")
            return
        try:
            assert child.stdout is not None
            line = await child.stdout.read()
            await child.wait()
        except asyncio.CancelledError:
            child.kill()
            raise
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"error": f"the replay ended with status {child.returncode} and no figures"}
        if "error" in answer:
            self._show(about=f"No replay under {about}: {answer['error']}.")
            return
        ways = (("happened", "what happened"), ("again", "the same decisions, simulated"), ("then", f"{about}, simulated"))
        rows = [(name, *_texts(answer[key])) for key, name in ways]
        target = "" if answer["target"] is None else f", target {duration_text(answer['target'])}"
        self._show(about=f"The last {duration_text(answer['seconds'])}{target}.", rows=rows)

    def _show(self, **values: Any) -> None:
        self.html = rendered("live_what_if.html.j2", **{"rows": (), **values})
        self._changed()


def _texts(outcome: Mapping[str, float]) -> tuple[str, ...]:
    return f"{outcome['hosts']:.3g}", money(outcome["cost"]), percent(outcome["in_time"]), duration_text(outcome["p99"])
