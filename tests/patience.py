"""How long tests wait for what must come."""

import os

PATIENCE = int(os.environ.get("TEST_PATIENCE", "120"))
"""Seconds after which a test that waits for something has failed. One that passes never waits so
long, however slow the machine is and whatever else it does. `scripts/plant_faults.py` sets less:
with a fault, a test may wait for what never comes.
"""
