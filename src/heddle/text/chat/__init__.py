"""Conversations: chat templates, and the forms in which models write calls."""
