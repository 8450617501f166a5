"""Parts that policies share: sizing, placement, drafts of a plan."""
