"""The APIs of the server, one package for each. They do not import one another."""
