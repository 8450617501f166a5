"""E2DF's managers: operator and application managers over replicas, region managers over hosts.

From "A multi-level elasticity framework for distributed data stream processing" (Nardelli, Russo Russo, Cardellini and
Lo Presti, 2018), sections 3 and 4. The infrastructure manager is the arbiter of `elastream.planning.sharing`, whose package
has the table of messages between the upper managers and that of a host's life. An application manager grants or refuses, in
each of its rounds, what its operators propose: a replica more and where, or one fewer and which.

All is pure: a manager is a function from (its state, what it sees, what it heard) to (its state, what it sends). How the
four sit together in one process is `rounds`; how a plan of theirs becomes actions is `elastream.planning.policies.e2df`;
how they sit in processes of their own, and what of their state must be on disk when, is `elastream.services.region_node`.
"""
