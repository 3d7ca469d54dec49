"""Parses the text of an answer into parts while the text arrives."""
