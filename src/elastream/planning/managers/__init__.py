"""E2DF's managers: operator and application managers over replicas, region and infrastructure managers over hosts.

From "A multi-level elasticity framework for distributed data stream processing" (Nardelli, Russo Russo, Cardellini and
Lo Presti, 2018), sections 3 and 4. All is pure: a manager is a function from (its state, what it sees, what it was told) to
(its state, what it says). How the four sit together in one process is `rounds`; how a plan of theirs becomes actions is
`elastream.planning.policies.e2df`; how they sit in processes of their own, and what of their state must be on disk when, is
`elastream.services.nodes`.

Who says what to whom
---------------------

    from            to              message       when                    what it means
    operator        application     ScaleOut      application round       I would have n + 1 replicas, the new one there
    operator        application     ScaleIn       application round       I would have n - 1, without that one
    application     operator        Verdict       in the same round       granted, or refused and why
    region          infrastructure  RegionReport  infrastructure round    all its hosts; what it would add, release, drain
    infrastructure  region          RegionOrder   on change, until heard  all hosts that the region shall have
    infrastructure  application     View          on change, until heard  all hosts that it may place on, and which to leave
    application     infrastructure  Holding       infrastructure round    all hosts that it holds; which it will not leave

No message says "one more": each gives the whole stance of its sender. So a message that comes twice says nothing new, and
one that is lost is made good by the next. Orders and views carry a *term* that grows with each change: a lower or equal one
is not news. Reports and holdings carry a *number* in the same manner, and the term that their sender had *seen*: what it
has not seen it cannot have answered.

The life of a host, as the infrastructure manager keeps it
-----------------------------------------------------------

    from      to        when
    -         ORDERED   a region asked for a host, and price, latency, capacity and preference allow it
    ORDERED   FREE      its region reports it up
    FREE      VIEWED    it is put into the view of one application
    VIEWED    LEAVING   its region (empty, or hardly used) or consolidation wants it gone: its application is asked, and
                        withholds it from placement from that moment
    LEAVING   VIEWED    its application refuses (it is critical), or the patience is over: cancelled, nothing has changed
    LEAVING   VIEWED    it was empty beside an application without room: its application has let go of it, the other has it
    LEAVING   -         its application has let go of it: it is struck off its region's order, which releases it
    FREE      -         the same, for a host that is in no view
    any       -         its region has lost it

An application lets go of a host only when none of its replicas is there and no placement that it granted points there, and
counts it as its own until then; the infrastructure manager gives it to nobody else before it has heard so, in a message
whose sender had seen the latest term about this host. Hence at most one manager owns a host, and none is released under a
placement. That holds for any order, loss and doubling of messages (`tests/planning/hierarchy/test_protocol.py`).
"""
