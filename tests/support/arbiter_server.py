"""An arbiter's own service at a real port, in a thread of this process."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from elastream.core.hosts import HostType
from elastream.pool.arbiter import ArbiterNode
from elastream.pool.service import arbiter_service
from elastream.pool.state_log import StateLog
from elastream.sharing.messages import Offer
from elastream.sharing.rules import ArbiterRules
from support.waiting import wait_until

TOKEN = "a token of the tests"


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextlib.contextmanager
def served(node: ArbiterNode, token: str = TOKEN) -> Iterator[str]:
    """The node at a real port, in a thread; gives its address."""
    config = uvicorn.Config(arbiter_service(node, token), port=unused_port(), log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{config.port}"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def machines_at_a_port(
    folder: Path, kind: HostType, machines: int, most: int | None = None
) -> Iterator[tuple[ArbiterNode, Mapping[str, Any]]]:
    """An arbiter of so many machines, and the pool as users name it. most: hosts that an application may lease."""
    offer = Offer(f"{folder.name}-{os.getpid()}", (kind,), most or machines)
    log = StateLog(folder / "pool.journal", "pool")
    there = {f"m{number}": kind.name for number in range(machines)}
    node = ArbiterNode(offer, ArbiterRules(), log, time.time, machines=there)
    with served(node) as url:
        yield node, {"is": "Pool", "url": url, "token": TOKEN}
    log.close()
