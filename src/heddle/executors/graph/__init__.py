"""The recorded forward pass, the same for every device."""
