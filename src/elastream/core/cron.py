"""Minutes that cron expressions of five fields match, by the wall clock."""

from datetime import datetime, timedelta, tzinfo

MINUTE = timedelta(minutes=1)
FIELDS_OF_CRON = 5


def cron_problem(expression: str) -> str:
    """Return why `expression` is not a cron expression, as a sentence, or ""."""
    from cronsim import CronSim, CronSimError

    problem = ""
    if not isinstance(expression, str) or len(expression.split()) != FIELDS_OF_CRON:
        problem = "it does not have five fields"
    else:
        try:
            CronSim(expression, datetime.now())
        except CronSimError as error:
            problem = str(error)
    fields = "minute, hour, day of the month, month, day of the week"
    return f"{expression!r} is not a cron expression ({problem}): {fields}" if problem else ""


def matches(expression: str, epoch: float, zone: tzinfo | None) -> bool:
    """Return True if `expression` matches the minute of `epoch` (seconds since 1970) in `zone` (None: this machine's)."""
    from cronsim import CronSim

    # The clock on the wall, without a zone: CronSim begins each hour of a night of the change with a minute too few.
    minute = datetime.fromtimestamp(epoch, zone).replace(second=0, microsecond=0, tzinfo=None, fold=0)
    try:
        return bool(next(CronSim(expression, minute - MINUTE)) == minute)
    except StopIteration:  # a date that there never is
        return False
