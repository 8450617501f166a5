"""Plant with a queue per instance, on hosts whose cores and link are shared, as in Storm."""

from elastream_papers.tasks.network import TaskNetwork
from elastream_papers.tasks.settings import Background, TaskSettings

__all__ = ["Background", "TaskNetwork", "TaskSettings"]
