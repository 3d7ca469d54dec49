"""Triton kernels of the torch executor. Triton's interpreter runs them on a CPU, for tests."""
