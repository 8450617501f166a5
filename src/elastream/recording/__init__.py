"""Records runs: the file format of a recording, its writer and reader, and the figures of a whole run."""
