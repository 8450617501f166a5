"""The arbiter of hosts that several applications share: claims in; grants, recalls and refusals out."""
