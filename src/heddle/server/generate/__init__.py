"""The parts that all generating APIs share: requests, tools, constraints, answers."""
