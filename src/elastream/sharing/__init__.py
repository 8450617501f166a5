"""The arbiter of hosts that several applications share: turns claims into grants, recalls and refusals with reasons.

It is E2DF's infrastructure manager (Nardelli, Russo Russo, Cardellini and Lo Presti, 2018, sections 3 and 4.1) and the
owner of a fixed set of machines in one: hosts are either fixed machines, or leased by the managers of regions. All is
pure: a party is a function from (its state, messages received) to (its state, messages sent).

Messages
--------

    from         to           message       when                    meaning
    application  arbiter      Claim         twice a second or so    all hosts that it holds; those that it refuses to leave;
                                                                    kinds of hosts that it requests besides; whether it is
                                                                    critical; its free slots; how used its hosts are
    arbiter      application  View          answers a claim         all hosts that it may use (grants); those of them it
                                                                    is to leave (recalls), why a request is not granted
    region       arbiter      RegionReport  each of its rounds      all its hosts; what it would add, release, drain
    arbiter      region       RegionOrder   answers a report        all hosts that the region is to have; what was refused

No message is incremental: each has the complete state of its sender. So a duplicate changes nothing, and
a lost one is replaced by the next. Orders and views carry a *term* that grows with each change: one with a
lower or equal term is ignored. Claims and reports carry a *number* in the same manner, and the term that their sender had
*seen*: it cannot have answered later ones. A view has for each host the term in which that host last changed, so that an
application that released a host can distinguish an outdated view from a new grant.

Lifecycle of a host
-------------------

    from      to        when
    -         IDLE      a fixed machine, from the start: it costs nothing
    -         ORDERED   its region requests a host, or an application does and none is free; the rules of regions allow it
    ORDERED   FREE      its region reports it up
    IDLE      HELD      an application that is entitled to it requests it, and no leased host is free: its lease begins
    FREE      HELD      an application gets it; or its holder, counted as dead, was only cut off
    FREE      IDLE      a fixed machine: its paid unit is about to end and no application requests it: its lease ends
    HELD      FREE      its application gave it back unasked, ended, or was silent for too long
    HELD      RECALLED  another application is entitled to it, or its region or consolidation gives it back: its
                        application is requested to leave, and places nothing there from that moment
    RECALLED  HELD      its application refuses, did not leave in time, or it is no longer needed: nothing has changed
    RECALLED  HELD      its application has left it, and the heir that it was recalled for has it
    RECALLED  FREE      its application has left it, ended, or was silent for too long
    FREE      -         its region gives it back: it is removed from the region's order, which releases it
    RECALLED  -         the same, once its application has left it
    any       -         its region has lost it

An application lets go of a host only when none of its replicas is there and no placement that it granted points there, and
counts it as its own until then; the arbiter assigns it to no other before it has received this, in a message whose sender
had seen the latest term of this host. Hence at most one application holds a host, and none is released under a placement,
whatever the order, loss and doubling of messages (`tests/planning/sharing/test_protocol.py`).

Who is entitled to how many is one rule (`shares`): minima first, then by priority, and a critical application last of all
from those of lower priority. What is shared is either all hosts, by what applications request (`ArbiterRules.by_spare`
False), or only hosts in which nothing runs, by the free slots that applications have (True: E2DF's own policy, which takes
no host in use).
"""
