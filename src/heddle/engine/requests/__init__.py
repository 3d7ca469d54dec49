"""A request until it is queued: it is checked, prepared, and admitted; and how long it may wait."""
