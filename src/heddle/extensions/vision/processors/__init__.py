"""Picture processors: how each family of models resizes, cuts and names a prompt's pictures."""
