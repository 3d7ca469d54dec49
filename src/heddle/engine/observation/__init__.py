"""Reports of an engine about itself: figures, warnings, lines of the log, the watchdog."""
