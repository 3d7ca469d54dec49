"""The table of all fields that vendors document: which the server serves, ignores or refuses."""
