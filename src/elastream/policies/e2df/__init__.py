"""E2DF's managers: operator and application managers over replicas, region managers over hosts.

From "A multi-level elasticity framework for distributed data stream processing" (Nardelli, Russo Russo, Cardellini and
Lo Presti, 2018), sections 3 and 4. The infrastructure manager is the arbiter of `elastream.sharing`, whose package
documents the messages between the upper managers and the lifecycle of hosts. In each round an application manager grants
or refuses the proposals of its operators: to add a replica on a host, or to remove one.

All is pure: a manager is a function from (state, observation, messages received) to (state, messages sent). `rounds` runs
all four in one process; `elastream.policies.e2df.policy` converts their plans to actions; `elastream.observability` runs
region managers and the arbiter as processes, with journals.
"""
