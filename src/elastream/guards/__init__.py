"""What chooses alternates: activation and value-based guards. Nothing yet."""
