"""What policies are made of: placement, matching, attraction, exact solutions, drafts of a plan."""
