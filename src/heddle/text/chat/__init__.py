"""Chat templates, and the forms in which models write function calls."""
