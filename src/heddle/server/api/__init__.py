"""The APIs that are served, a package each. They do not import one another."""
