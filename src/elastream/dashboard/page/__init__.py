"""The live page: runs of this machine in a browser, from their folders alone."""
