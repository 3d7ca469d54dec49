"""HTTP plumbing: bodies, connections, keys, headers, errors as responses. No vendor here."""
