"""Tests that share a cluster, which ends after them."""
