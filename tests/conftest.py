"""What tests may count on, however they were started.

A shell that runs a command in the background, and nohup, let it ignore signals. Processes that tests start inherit that,
and a test which ends them by a signal would wait for ever.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)
