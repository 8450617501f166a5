"""Algorithms shared by policies: placement, matching, attraction, exact solutions, drafts of a plan."""
