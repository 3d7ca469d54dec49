"""The HTTP server of the models of a registry.

`app.py` puts the APIs together: those of the packages in `api/`, and those of extensions.
"""
