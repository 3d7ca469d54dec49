"""The HTTP server of one engine. `app.py` puts the APIs together; each has a package in `api/`."""
