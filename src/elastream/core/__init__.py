"""Vocabulary: cloud, observation, action, decision, and the Plant seam. No I/O, no engine."""
