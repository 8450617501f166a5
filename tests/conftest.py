"""What tests may count on, however they were started, and on however slow a machine.

A shell that runs a command in the background, and nohup, let it ignore signals. Processes that tests start inherit that,
and a test which ends them by a signal would wait for ever.
"""

import signal

from hypothesis import settings

from properties import USUAL

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)

# No deadline: an example that takes long says that the machine is busy, and nothing of what is tested.
# `make test` runs a quarter of the examples, `make test-all` all of them (--hypothesis-profile=full).
settings.register_profile("quick", deadline=None, max_examples=USUAL // 4)
settings.register_profile("full", deadline=None, max_examples=USUAL)
settings.load_profile("quick")
