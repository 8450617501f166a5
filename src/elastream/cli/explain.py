"""`elastream explain RUN`: prints the decisions of a run and their reasons."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.options import Recorded, as_seconds
from elastream.cli.output import AsJson, print_json
from elastream.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from elastream.core.decision import Decision
    from elastream.recording.recorder import Recording

Round = Annotated[int | None, typer.Option(metavar="N", min=0, help="Show this planning round.")]


def _time(text: str) -> float:
    parts = text.split(":")
    if len(parts) in (2, 3) and all(part.isdecimal() for part in parts):
        return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))
    return as_seconds(text)


At = Annotated[
    float | None,
    typer.Option(parser=_time, metavar="TIME", help="Show the round in force then, such as 90s or 1:30."),
]


def explain(run: Recorded, round: Round = None, at: At = None, as_json: AsJson = False) -> None:
    """Show a planning round: metrics seen, proposals, refusals, actions done, predictions and results.

    Without an option, list all actions with their reasons.
    """
    from elastream.dashboard.console import make_console
    from elastream.recording.recorder import Recording

    if round is not None and at is not None:
        raise typer.BadParameter("give --round or --at, not both")
    recording, console = Recording.read(run), make_console()
    if not recording.decisions:
        ending = recording.ending
        why = (
            f": the run {ending.status} after {ending.time:.0f} s{f', {ending.reason}' if ending.reason else ''}"
            if ending
            else ""
        )
        raise InputError(f"{run}: no planning round was recorded{why}")
    if round is not None or at is not None:
        decision = _by_round(recording, round, run) if round is not None else _in_force(recording, at or 0.0, run)
        if as_json:
            print_json(decision.to_json())
        else:
            _explain_round(recording, decision, _Printer(console))
    elif as_json:
        rounds = [decision.to_json() for decision in recording.decisions]
        alarms = [{**asdict(alarm), "cleared": cleared} for alarm, cleared in recording.alarms]
        print_json({"rounds": rounds, "alarms": alarms})
    else:
        _list(recording, console)


def _by_round(recording: "Recording", number: int, run: Path) -> "Decision":
    for decision in recording.decisions:
        if decision.round == number:
            return decision
    first, last = recording.decisions[0].round, recording.decisions[-1].round
    raise InputError(f"{run} has no round {number}: it has {first} to {last}")


def _in_force(recording: "Recording", time: float, run: Path) -> "Decision":
    earlier = [decision for decision in recording.decisions if decision.time <= time]
    if not earlier:
        first = recording.decisions[0].time
        raise InputError(f"{run}: no planning round by {time:g} s; the first round was at {first:g} s")
    return earlier[-1]


def _list(recording: "Recording", console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    from elastream.core.wording import clock, counted
    from elastream.dashboard.live import acted, alike, summary_of, worth_showing

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("time", justify="right")
    table.add_column("round", justify="right")
    table.add_column("action and reason", overflow="fold")
    groups: list[list[Decision]] = []  # consecutive rounds that read alike share a line
    for decision in recording.decisions:
        if not (worth_showing(decision) or decision.faults):
            continue
        if decision.outcomes or not (groups and alike(groups[-1][-1], decision)):
            groups.append([])
        groups[-1].append(decision)
    for group in groups:
        table.add_row(clock(group[0].time), str(group[0].round), _row(group[-1], summary_of(group[-1])))
    console.print(table)
    for alarm, cleared in recording.alarms:
        until = f"cleared at {clock(cleared)}" if cleared is not None else "not cleared"
        line = f"alarm at {clock(alarm.since)}, {until}  {alarm.source}: {alarm.said}"
        console.print(Text(line, style="red"), soft_wrap=True)
    failed = sum(bool(decision.faults) for decision in recording.decisions)
    quiet = sum(not acted(decision) and not decision.faults for decision in recording.decisions)
    rounds = counted(len(recording.decisions), "round")
    console.print(
        f"{quiet} of {rounds} had nothing to do" + (f", {failed} failed (--round N shows why)" if failed else ""),
        style="dim",
    )
    _newest(recording, console)


def _row(decision: "Decision", summary: str) -> "Text":
    from rich.text import Text

    from elastream.core.wording import UNKNOWN

    if not decision.faults:
        return Text(summary)
    faults = "; ".join(fault.said for fault in decision.faults)
    more = "" if summary == UNKNOWN else f"; {summary}"
    return Text(summary if faults in summary else faults + more, style="red")


def _newest(recording: "Recording", console: "Console") -> None:
    from rich.text import Text

    from elastream.core.latency import basis_text
    from elastream.core.metrics import Metric
    from elastream.core.wording import clock, quantity
    from elastream.report.page import costs_text, savings_aside
    from elastream.report.summary import summarise
    from elastream.report.tally import count_in_time

    if not len(recording.times):
        return
    values = [(metric, float(recording.application(metric)[-1])) for metric in Metric]
    parts = [f"{str(metric).replace('_', ' ')} {quantity(metric, value)}" for metric, value in values if value == value]
    if parts:
        console.print(
            f"newest metrics, at {clock(recording.times[-1])}: {', '.join(parts)}", highlight=False, soft_wrap=True
        )
    for standing in recording.standings_at(float(recording.times[-1])).values():
        if standing.why:
            console.print(Text(f"guards: {standing.why}", style="yellow"), soft_wrap=True)
    if recording.latency_basis:
        console.print(f"latency is measured: {basis_text(recording.latency_basis)}", highlight=False, soft_wrap=True)
    if recording.header.target_latency is not None:
        whole = "in time over the whole run (compliance covers the last batches only)"
        console.print(f"{whole}: {count_in_time(recording)}", highlight=False, soft_wrap=True)
    summary = summarise(recording)
    if others := savings_aside(summary):
        console.print(f"cost so far {costs_text(summary)}; {others}", highlight=False, soft_wrap=True)


class _Printer:
    def __init__(self, console: "Console") -> None:
        self._console = console

    def heading(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, "bold"))

    def line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(f"  {text}", style), soft_wrap=True)

    def trace(self, traceback: str) -> None:
        for each in traceback.splitlines():
            self.line(f"  {each}", "dim")


def _explain_round(recording: "Recording", decision: "Decision", printer: _Printer) -> None:
    from elastream.core.wording import clock, duration_text

    at = f"{clock(decision.time)} ({decision.time:.1f} s)"
    printer.heading(f"round {decision.round} at {at}, policy {decision.policy}")
    printer.line(f"planned in {duration_text(decision.seconds)}")
    _explain_metrics(recording, decision, printer)
    _explain_guards(recording, decision, printer)
    _explain_actions(decision, printer)
    for fault in decision.faults:
        printer.heading("fault")
        printer.line(fault.said)
        printer.trace(fault.traceback)
    _explain_predictions(decision, printer)
    _explain_alarms(recording, decision, printer)


def _explain_metrics(recording: "Recording", decision: "Decision", printer: _Printer) -> None:
    from elastream.core.latency import basis_text
    from elastream.core.wording import quantity

    printer.heading("seen")
    for name, value in decision.seen.items():
        printer.line(f"{name.replace('_', ' ')}: {quantity(name, value)}")
    if recording.latency_basis:
        printer.line(f"latency is measured: {basis_text(recording.latency_basis)}")
    for lacking in decision.unknown:
        printer.line(str(lacking), "yellow")


def _explain_actions(decision: "Decision", printer: _Printer) -> None:
    heading, line = printer.heading, printer.line
    heading("proposed")
    for proposal in decision.proposals:
        why = f" - {proposal.action.why}" if proposal.action.why else ""
        refused = f"; refused: {proposal.refused}" if proposal.refused else ""
        line(f"{proposal.action.describe()}, by {proposal.by}{why}{refused}")
    if not decision.proposals:
        line("nothing" + (f": {decision.note}" if decision.note else ""))
    elif decision.note:
        heading("noted")
        line(decision.note)
    heading("done")
    for outcome in decision.outcomes:
        line(f"{outcome.action.describe()}: {outcome.status.value}" + (f", {outcome.reason}" if outcome.reason else ""))
    if not decision.outcomes:
        line("nothing")


def _explain_predictions(decision: "Decision", printer: _Printer) -> None:
    from elastream.core.wording import UNKNOWN, quantity

    if decision.predicted:
        printer.heading("predicted and measured")
    for name, value in decision.predicted.items():
        actual = quantity(name, decision.actual[name]) if name in decision.actual else UNKNOWN
        printer.line(f"{name.replace('_', ' ')}: {quantity(name, value)} predicted, {actual} measured")


def _explain_alarms(recording: "Recording", decision: "Decision", printer: _Printer) -> None:
    time = decision.time
    alarms = [alarm for alarm, end in recording.alarms if alarm.since <= time and (end is None or end > time)]
    if alarms:
        printer.heading("alarms")
    for alarm in alarms:
        printer.line(f"{alarm.source}: {alarm.said} (since {alarm.since:.1f} s)", "red")
        printer.trace(alarm.traceback)


def _explain_guards(recording: "Recording", decision: "Decision", printer: _Printer) -> None:
    from elastream.core.wording import duration_text, signal_text

    heading, line = printer.heading, printer.line
    standings = recording.standings_at(decision.time)
    if not standings:
        return
    compositions = recording.compositions_at(decision.time)
    requested = compositions[""]
    heading(f"guards, version {decision.guards}" if decision.guards else "alternates")
    for element, standing in standings.items():
        runs = requested.running(element)
        effective = compositions.get(recording.query_of(element))
        ran = runs if effective is None else effective.running(element)
        yet = f" (the last committed batch ran {ran})" if ran != runs else ""
        allowed = ", ".join(standing.allowed) or "nothing else"
        line(f"{element} runs {runs}{yet}; may run: {allowed}", "" if standing.allowed else "yellow")
        for alternate, text in standing.texts.items():
            value = standing.values[alternate]
            missing = f"; unknown: {', '.join(standing.unknown[alternate])}" if alternate in standing.unknown else ""
            line(f"  {alternate}, value {'unknown' if value != value else f'{value:.3g}'}: {text}{missing}", "dim")
    signals = recording.signals_at(decision.time)
    heading("signals")
    for name, reading in sorted(signals.items()):
        line(f"{name}: {signal_text(reading.value)}, {duration_text(max(0.0, decision.time - reading.time))} old")
