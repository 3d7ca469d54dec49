"""What an engine tells about itself: figures, warnings, lines of the log, the watchdog."""
