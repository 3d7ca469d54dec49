"""Divides a recorded forward pass among the ranks of a group."""
