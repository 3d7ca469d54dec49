"""The CPU executor: packs weights for the native core, which runs the plans."""
