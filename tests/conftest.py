"""What tests may count on, however they were started, and on however slow a machine.

A shell that runs a command in the background, and nohup, let it ignore signals. Processes that tests start inherit that,
and a test which ends them by a signal would wait for ever.
"""

import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)

# An example that takes long says that the machine is busy, and nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
