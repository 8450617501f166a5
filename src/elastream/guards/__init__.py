"""What chooses alternates: activation and value-based guards. Nothing yet; its issue has not opened."""
