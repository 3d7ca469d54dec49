"""The recorded forward pass, whatever device runs it."""
