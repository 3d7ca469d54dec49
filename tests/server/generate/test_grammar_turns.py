"""Grammars of several clients wait for one another as little as can be."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from heddle.config import ServerConfig
from heddle.errors import GrammarError
from heddle.grammars import Grammar
from heddle.server.generate import dispatch
from heddle.server.http.body import Bodies
from heddle.server.http.connection import ClientGoneError
from heddle.server.http.record import RECORD, RequestRecord
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fake_server import Running


def sent_by(client: str, leaves: threading.Event | None = None) -> Request:
    """A request, whose client leaves when that is set."""

    async def receive() -> dict[str, Any]:
        await (asyncio.Event().wait() if leaves is None else asyncio.to_thread(leaves.wait))
        return {"type": "http.disconnect"}

    return Request({"type": "http", RECORD: RequestRecord(address=client)}, receive)


def run(work: Callable[[Bodies, threading.Event], Coroutine[Any, Any, None]]) -> None:
    """`work` with a gate, on which tasks may wait, and which is open in the end."""

    async def bounded() -> None:
        gate = threading.Event()
        try:
            await asyncio.wait_for(work(Bodies(ServerConfig(), frozenset()), gate), PATIENCE)
        finally:
            gate.set()

    asyncio.run(bounded())


def test_one_client_cannot_take_all_places() -> None:
    async def work(bodies: Bodies, gate: threading.Event) -> None:
        many = [asyncio.create_task(bodies.compile(sent_by("a"), gate.wait)) for _ in range(5)]
        assert await bodies.compile(sent_by("b"), lambda: "done") == "done"
        assert await bodies.compile(sent_by("b"), lambda: "again") == "again"
        gate.set()
        assert await asyncio.gather(*many) == [True] * 5

    run(work)


def test_clients_have_turns() -> None:
    async def work(bodies: Bodies, gate: threading.Event) -> None:
        last = threading.Event()  # the others are done when it is
        busy = [asyncio.create_task(bodies.compile(sent_by(c), gate.wait)) for c in "xy"]
        others = [
            asyncio.create_task(bodies.compile(sent_by("a"), partial(last.wait, PATIENCE)))
            for _ in range(3)
        ]
        one = asyncio.create_task(bodies.compile(sent_by("b"), last.set))
        await asyncio.sleep(0)  # all of them wait
        gate.set()
        await asyncio.gather(*busy, one)
        assert await asyncio.gather(*others) == [True] * 3

    run(work)


def test_a_client_that_leaves_has_no_other_turn_before_its_work_is_done() -> None:
    async def work(bodies: Bodies, gate: threading.Event) -> None:
        begun = threading.Event()

        def begin_and_wait() -> bool:
            begun.set()
            return gate.wait()

        with pytest.raises(ClientGoneError):
            await bodies.compile(sent_by("a", leaves=begun), begin_and_wait)
        second = asyncio.create_task(bodies.compile(sent_by("a"), gate.wait))
        assert await bodies.compile(sent_by("b"), lambda: "done") == "done"
        assert await bodies.compile(sent_by("b"), lambda: "again") == "again"
        gate.set()
        assert await second

    run(work)


def test_a_known_grammar_waits_for_no_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Running = serve()
    schema = {"name": "x", "schema": {"const": None}}
    form = {"type": "json_schema", "json_schema": schema}
    body = {"prompt": "x", "response_format": form}
    assert server.post("/v1/completions", body).status_code == 200
    monkeypatch.setattr(Bodies, "compile", None)
    assert server.post("/v1/completions", body).status_code == 200


def test_the_search_for_what_is_to_blame_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        asked = 0

        def prepare_grammar(self, grammar: Grammar) -> None:
            self.asked += 1
            if grammar.param == "tools":
                raise GrammarError("too much", param="tools")

    engine: Any = Engine()
    whole, single = Grammar.lark("start: A", "tools"), Grammar.lark("start: A", "tools[0]")
    with pytest.raises(GrammarError):
        dispatch._compiled(engine, whole, [single] * 5)
    assert engine.asked == 6
    monkeypatch.setattr(dispatch, "_BLAME_SECONDS", -1)
    with pytest.raises(GrammarError):
        dispatch._compiled(engine, whole, [single] * 5)
    assert engine.asked == 7
