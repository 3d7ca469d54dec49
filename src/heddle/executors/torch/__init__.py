"""The executor on torch tensors: device `torch` is torch's CPU build, device `cuda` a GPU."""
