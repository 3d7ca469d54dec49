"""Devices that run steps, by name. An executor is a lowering of one recorded graph."""
