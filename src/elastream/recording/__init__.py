"""What a run was: the form of a recording, its writer, its reader, and the figures of the whole run."""
