"""Sessions without a JVM, for what only asks them which queries run."""

from types import SimpleNamespace


def without_jvm(execution=None, **more):
    """A session whose every query is `execution`; more: other attributes of it."""
    queries = SimpleNamespace(get=lambda _: execution, values=list)
    uuid = SimpleNamespace(fromString=str)
    return SimpleNamespace(
        _jvm=SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=uuid))),
        _jsparkSession=SimpleNamespace(
            streams=object, sharedState=lambda: SimpleNamespace(activeStreamingQueries=lambda: queries)
        ),
        **more,
    )
