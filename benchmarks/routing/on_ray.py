"""Shows the router in a local Ray Serve: two replicas without a model, and who answers whom.

pip install 'ray[serve]>=2.60'
python benchmarks/routing/on_ray.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from heddle.extensions.ray.routing.blocks import key_of_bytes, pack, root, unpack
from heddle.extensions.ray.routing.published import Load, Published, Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

PERIOD = 0.2  # seconds between publications


@dataclass
class Exchange:
    """A request as the router reads it."""

    key: bytes = b""
    model: str = "demo"
    adapter: str = ""
    client: str = ""
    avoid: tuple[str, ...] = ()


def exchange(text: str, **fields: Any) -> Exchange:
    """A request with this prompt."""
    return Exchange(key=pack(key_of_bytes(root("demo"), [text.encode()])), **fields)


@serve.deployment(
    num_replicas=2,
    max_ongoing_requests=100,
    ray_actor_options={"num_cpus": 0.5},
    request_router_config=RequestRouterConfig(
        request_router_class="heddle.extensions.ray.routing.ray_router:HeddleRouter",
        request_routing_stats_period_s=PERIOD,
    ),
)
class Demo:
    """A replica that answers with its own id, and holds every prompt."""

    def __init__(self) -> None:
        self._publisher = Publisher()
        self._polls = 0

    async def answer(self, request: Exchange, seconds: float = 0.0) -> str:
        """The id of this replica, after so many seconds."""
        self._publisher.stored(unpack(request.key))
        await asyncio.sleep(seconds)
        return serve.get_replica_context().replica_id.unique_id

    async def polls(self, request: Exchange) -> int:
        """How often Ray has asked for a publication."""
        return self._polls

    def record_routing_stats(self) -> Published:
        """What routers learn of this replica."""
        self._polls += 1
        return self._publisher.publish(Load(prefill_rate=1000.0, models=frozenset({"demo"})))


@contextlib.contextmanager
def serving() -> Iterator[Any]:
    """A handle of two replicas in a Ray cluster of this process."""
    deployment: Any = Demo  # the decorator makes it one
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}  # replicas import this module by its name
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": paths},
    )
    try:
        yield serve.run(deployment.bind(), name="demo", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()


def main() -> None:
    with serving() as handle:
        texts = [f"{talk} " * 300 for talk in range(20)]
        first = [handle.answer.remote(exchange(text)).result(timeout_s=30) for text in texts]
        print(f"20 new prompts: {dict(Counter(first))}")
        for turn in range(1, 4):
            asked = [exchange(text + f" turn {turn} " * 40 * turn) for text in texts]
            names = [handle.answer.remote(one).result(timeout_s=30) for one in asked]
            same = sum(a == b for a, b in zip(first, names, strict=True))
            print(f"turn {turn}: {same} of 20 at the replica that has the conversation")
        lost = first[0]
        moved = [
            handle.answer.remote(exchange(text, avoid=(lost,))).result(timeout_s=30)
            for text in texts
        ]
        print(f"with one to avoid: {dict(Counter(moved))}; none at {lost}: {lost not in moved}")
        began = time.perf_counter()
        for text in texts * 10:
            handle.answer.remote(exchange(text)).result(timeout_s=30)
        print(f"{(time.perf_counter() - began) / 200 * 1000:.1f} ms a call, one after the other")
        try:
            handle.answer.remote(exchange("x", model="none")).result(timeout_s=30)
        except Exception as error:
            print(f"model 'none': {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
