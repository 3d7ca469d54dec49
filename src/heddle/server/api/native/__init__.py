"""Heddle's own API: health, metrics, slots, the prefix cache."""
