"""HTTP parts that all APIs share: bodies, connections, keys, headers, error responses."""
