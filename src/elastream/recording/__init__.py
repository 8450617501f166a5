"""Files of a run: its folder, recording, logs and manifest."""
