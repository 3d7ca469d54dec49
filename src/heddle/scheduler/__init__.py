"""Which tokens of which sequences the next step computes. Integers only: no arrays, no text."""
