"""Chat templates, and the forms in which models write calls of functions."""
