"""Arbiter of hosts that several applications share.

It is E2DF's infrastructure manager (Nardelli, Russo Russo, Cardellini and Lo Presti, 2018, sections 3 and 4.1) and the
owner of a fixed set of machines. Every party is a pure function from (state, messages received) to (state, messages sent).

A message carries its sender's whole state: duplicates and losses do no harm. Views and orders carry a *term* that grows
with each change; claims and reports a *number*, and the last term *seen*. Older messages are ignored.

The arbiter reassigns a host only after a message without it, from a sender that had seen the host's latest term. So one
application holds a host.
"""
