"""Models: shared blocks over `Ops`, and in `families/` one small file for each family."""
