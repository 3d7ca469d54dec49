"""What every API that generates shares: the request, its tools and constraints, dispatch."""
