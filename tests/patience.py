"""How long tests wait for what must come."""

PATIENCE = 120
"""Seconds after which a test that waits for something has failed. One that passes never waits so
long, however slow the machine is and whatever else it does.
"""
