"""A controller that leases h1 of a cloud, in a folder, and is killed once that is up. Arguments: the cloud, the folder."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import elastream
from elastream.clouds.provider import Phase, RunState

about = json.loads(sys.argv[1])
cloud = getattr(elastream, about.pop("is"))(**about)
provider = cloud.open(Path(sys.argv[2]))
provider.lease({"h1": cloud.types[0]})
while (status := provider.hosts()["h1"]).phase is not Phase.UP:
    assert status.phase is not Phase.GONE, status.reason
    time.sleep(0.05)
provider.report(RunState(ready=frozenset({"h1"})))
os.kill(os.getpid(), signal.SIGKILL)
