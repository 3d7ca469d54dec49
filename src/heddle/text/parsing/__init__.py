"""From an answer's text, as it comes, to its parts."""
