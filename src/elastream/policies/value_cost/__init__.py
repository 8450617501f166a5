"""Search for plans of alternates, hosts and instances with the most value at the least cost."""
