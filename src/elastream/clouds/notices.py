"""Notices that a host is taken away soon, from a file or an HTTP endpoint, as metadata services of clouds give them."""

# file missing, empty or "FALSE"; HTTP 404, 204     no notice
# a time, alone or in JSON                          the host goes at that time
# another text, such as "TRUE"                      the host goes in UNTIMED_S seconds

import contextlib
import email.utils
import json
import logging
import math
import re
import string
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from elastream.clouds.provider import HostStatus
from elastream.core.alarm import AlarmedThread, Alarms
from elastream.errors import CloudError

PLACEHOLDERS = ("host", "address")
# The shortest notice of the large clouds; it counts where none is given.
UNTIMED_S = 30.0
# A notice is outdated once its time has passed by this many seconds: the host still exists.
STALE_S = 60.0
PERIOD_S, TIMEOUT_S = 2.0, 1.0
# Most reads at once; a round of more hosts than these may leave some unread.
READERS = 64
# Polls in a row that fail before an alarm: agents of new hosts may start late.
FAILED_POLLS = 10
# Names of times in the JSON of AWS, Azure and others.
TIME_FIELDS = ("time", "deadline", "notbefore", "terminationtime")
NONE_TEXTS = ("", "false", "none", "null", "[]", "{}")
# Characters of a text in the log.
SHOWN = 80
# Numbers that are times (epoch seconds): from the years 2001 to 5138.
EARLIEST, LATEST = 1e9, 1e11
NOTICE_ALARM = "notices"
# Agents on hosts are never behind a proxy.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

log = logging.getLogger(__name__)


class Notice(NamedTuple):
    """Notice that a host goes at `deadline` (epoch seconds)."""

    deadline: float
    text: str = ""


def check_notices(template: str) -> None:
    """Raise CloudError if `template` is no path or URL with a placeholder."""
    if not template:
        return
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise CloudError(f"notices: {template!r} is not a path or URL ({error})") from None
    if unknown := sorted(names - set(PLACEHOLDERS)):
        raise CloudError(f"notices: {template!r} has {{{unknown[0]}}}; there are {{host}} and {{address}}")
    if not names:
        raise CloudError(f"notices: {template!r} names no host: write {{host}} or {{address}} where it stands")
    if "://" in template and urlsplit(template).scheme not in ("file", "http", "https"):
        raise CloudError(f"notices: {template!r} is neither a path nor a file, http or https URL")


def read_notice(location: str) -> str:
    """Return the text at a path or URL; empty if there is none. Raises OSError."""
    if urlsplit(location).scheme in ("http", "https"):
        try:
            with DIRECT.open(location, timeout=TIMEOUT_S) as answer:
                return str(answer.read(10_000).decode(errors="replace"))
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                return ""
            raise
    try:
        return Path(location.removeprefix("file://")).read_text(encoding="utf-8", errors="replace")[:10_000]
    except (FileNotFoundError, NotADirectoryError):
        return ""


def parse_notice(
    text: str, since: float, address: str = "", all_: Collection[str] = (), now: float = -math.inf
) -> Notice | None:
    """Return the notice in `text`, or None.

    Args:
        since: Epoch second from which a notice without a time counts.
        address: Of the host. Azure's events of other machines do not count, as far as addresses tell.
        all_: Addresses of all hosts.
        now: Epoch second at which times are compared.
    """
    text = text.strip()
    if text.lower() in NONE_TEXTS:
        return None
    document: Any = text
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
    if isinstance(document, dict) and isinstance(events := document.get("Events"), list):  # Azure's scheduled events
        document["Events"] = [each for each in events if not _is_pause(each) and not _of_others(each, address, all_)]
        if not document["Events"]:
            return None
    times = [at for value in _times(document) if (at := _moment(value)) is not None]
    words = "" if isinstance(document, dict | list) else " ".join(text.split())[:80]
    if not times:
        return Notice(since + UNTIMED_S, words)
    # An old event may stand beside one that comes.
    return Notice(min((at for at in times if at > now - STALE_S), default=max(times)))


def _is_pause(event: Any) -> bool:
    """Return True for an event of Azure that stops a machine for seconds, and loses nothing."""
    return isinstance(event, dict) and event.get("EventType") == "Freeze"


def _of_others(event: Any, address: str, all_: Collection[str]) -> bool:
    """Return True if no machine of an event can be the one at `address`."""
    machines = event.get("Resources") if isinstance(event, dict) else None
    if not isinstance(machines, list) or not machines:
        return False
    own, ours = _machines_at(address), {name for each in all_ for name in _machines_at(each)}
    sets = {name.rpartition("_")[0] for name in own if "_" in name}

    def foreign(machine: str) -> bool:
        scale_set, _, number = machine.rpartition("_")
        return machine not in own and (machine in ours or (number.isdecimal() and scale_set in sets))

    return all(foreign(str(machine).lower()) for machine in machines)


def _machines_at(address: str) -> set[str]:
    """Return names of a machine in Azure: `web_37` is at `web000011`, in base 36."""
    name = address.partition(".")[0].lower()
    member = re.fullmatch(r"(.+)(0[0-9a-z]{5})", name)
    return {name, f"{member[1]}_{int(member[2], 36)}"} if member else {name}


def _times(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        for name, value in document.items():
            if name.lower() in TIME_FIELDS:
                yield value
            elif isinstance(value, dict | list):
                yield from _times(value)
    elif isinstance(document, list):
        for each in document:
            yield from _times(each)
    else:
        yield document


def _moment(value: Any) -> float | None:
    """Return an ISO or HTTP date, or epoch seconds or milliseconds, as epoch seconds; None if it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value if value < LATEST else value / 1e3 if value < 1e3 * LATEST else math.nan
        return float(seconds) if seconds > EARLIEST else None
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            at = read(str(value))
            seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            return seconds if seconds < LATEST else None
    return None


class NoticePoller:
    """Newest notices of hosts, read by a thread.

    Args:
        template: Path or URL with `{host}` or `{address}`.
        read: Returns the text at a location; raises OSError.
        timeout: Seconds for the reads of one round together.
    """

    def __init__(
        self,
        template: str,
        alarms: Alarms,
        *,
        read: Callable[[str], str] = read_notice,
        wall: Callable[[], float] = time.time,
        timeout: float = 2 * TIMEOUT_S,
    ) -> None:
        self._template, self._alarms, self._read, self._wall = template, alarms, read, wall
        self._timeout = timeout
        self._hosts: Mapping[str, HostStatus] = {}
        self._notices: dict[str, Notice] = {}
        self._first_read: dict[str, tuple[str, float]] = {}  # newest text of each host
        self._reading: set[str] = set()  # hosts whose read has not ended
        self._failures = 0
        self._closing = threading.Event()
        self._thread: AlarmedThread | None = None

    def mark(self, hosts: Mapping[str, HostStatus]) -> Mapping[str, HostStatus]:
        """Return `hosts`, those with a notice recalled; poll for these from now on."""
        by_address = "{address}" in self._template  # a starting host has none yet
        self._hosts = {name: each for name, each in hosts.items() if each.there and (each.address or not by_address)}
        if self._thread is None and self._hosts:
            self._thread = AlarmedThread(self._alarms, "elastream-notices", self._run)
            self._thread.start()
        notices = self._notices
        return {name: noticed(status, notices[name]) if name in notices else status for name, status in hosts.items()}

    def poll(self) -> None:
        """Read the notices of all hosts once."""
        notices, errors, first_read = {}, list[OSError](), dict[str, tuple[str, float]]()
        hosts = self._hosts
        addresses = {name: status.address for name, status in hosts.items()}
        for name, text in self._texts(hosts).items():
            before = self._first_read.get(name, ("", math.nan))
            if isinstance(text, OSError):
                errors.append(text)
                text = before[0]  # a host that is taken away may take its endpoint along
            first_read[name] = before if text == before[0] else (text, self._wall())
            notice = parse_notice(*first_read[name], addresses[name], addresses.values(), self._wall())
            if notice is not None and notice.deadline > self._wall() - STALE_S:
                notices[name] = notice
            elif notice is not None and text != before[0]:
                past = "the notice of host %s is past and does not count; times without a zone are UTC: %s"
                log.warning(past, name, text.strip()[:SHOWN])
        self._notices, self._first_read = notices, first_read
        self._failures = self._failures + 1 if errors else 0
        if self._failures >= FAILED_POLLS:
            self._alarms.sound(NOTICE_ALARM, f"notices cannot be read: {errors[0].strerror or errors[0]}")
        elif not errors:
            self._alarms.clear(NOTICE_ALARM)

    def _texts(self, hosts: Mapping[str, HostStatus]) -> dict[str, str | OSError]:
        """Return each host's text, or why it has none."""
        results: dict[str, str | OSError] = {}
        endpoints = {name: status for name, status in hosts.items() if name not in self._reading}
        waiting, answered = deque(endpoints.items()), threading.Semaphore(0)

        def read_some() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    name, status = waiting.popleft()
                    self._reading.add(name)
                    try:
                        results[name] = self._read(self._template.format(host=name, address=status.address))
                    except (OSError, ValueError, HTTPException) as error:
                        results[name] = error if isinstance(error, OSError) else OSError(str(error))
                    self._reading.discard(name)
                    answered.release()

        for _ in range(min(READERS, len(endpoints))):  # daemons: one that hangs must not keep the program
            threading.Thread(target=read_some, daemon=True).start()
        end = time.monotonic() + self._timeout
        for _ in endpoints:
            if not answered.acquire(timeout=max(0.0, end - time.monotonic())):
                break
        waiting.clear()
        return {name: results.get(name, OSError(f"host {name} does not answer")) for name in hosts}

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            self.poll()


def noticed(status: HostStatus, notice: Notice) -> HostStatus:
    at = datetime.fromtimestamp(notice.deadline, UTC).strftime("%H:%M:%S")
    reason = f"it is taken away at {at} UTC" + (f" ({notice.text})" if notice.text else "")
    return replace(status, recalled=True, reason=reason, deadline=notice.deadline) if status.there else status
