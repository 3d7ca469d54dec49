"""Regular expressions followed by Heddle itself, so that equal masks are made once."""
