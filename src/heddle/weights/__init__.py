"""Model files: finding and fetching them, reading them, and what their bytes mean."""
