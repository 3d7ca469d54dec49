"""Which replica gets a request: longest prefix first, bounded by queue time.

Read `blocks.py` (keys), `published.py` (what replicas say), `fleet.py` (what a router knows),
`choose.py` (the decision), then `ray_router.py`, the only module that imports Ray.
"""
