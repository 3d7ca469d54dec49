"""Messages arrive as they were sent, and a message of another form is refused."""

from __future__ import annotations

import math
import os
import socket
from array import array
from concurrent.futures import Future
from dataclasses import astuple, fields, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import configured
from heddle import errors
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import EngineFailedError, HeddleError, ModelFileError
from heddle.executor import DeviceMemory
from heddle.extensions.engrams.parameters import EngramChoice, EngramParams
from heddle.extensions.processes.children.channel import Channel
from heddle.extensions.processes.children.messages import Content, Message
from heddle.extensions.processes.children.versions import files_digest, open_same
from heddle.extensions.processes.failures import Failure
from heddle.extensions.processes.messages import LoadOrder, Order, Report
from heddle.extensions.processes.plans import (
    Expected,
    PlanReader,
    PlanWriter,
    Result,
    Step,
    write_result,
)
from heddle.extensions.processes.rules import RulesReader, RulesWriter
from heddle.extensions.processes.sent_config import SentConfig
from heddle.grammars import Grammar
from heddle.models.build import family_of
from heddle.outputs import PromptLogprob
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams, Stage
from heddle.step import (
    Binding,
    Chunk,
    Deferred,
    Failed,
    PageCopy,
    Pool,
    Pooled,
    Sampled,
    Scored,
    Scoring,
    StateCopy,
    StepPlan,
    StepResult,
    WindowPages,
)
from heddle.token_rules import TokenRules
from heddle.weights.formats import open_checkpoint
from models.tiny import llama

if TYPE_CHECKING:
    from pathlib import Path

numbers = st.integers(0, 1 << 33)
runs = st.lists(numbers, max_size=5)
chunks = st.builds(
    Chunk,
    slot=st.integers(0, 2),
    start=numbers,
    tokens=runs,
    pages=runs,
    sample=st.booleans(),
    score=st.none() | st.builds(Scoring, numbers, runs, numbers),
    pool=st.none() | st.builds(Pool, numbers, st.booleans()),
    windows=st.lists(
        st.builds(WindowPages, numbers, runs.map(list), st.none() | numbers), max_size=2
    ),
    guesses=numbers,
    uncertain=numbers,
    keep_states=numbers,
)
state_copies = st.lists(st.builds(StateCopy, numbers, numbers), max_size=3).map(tuple)
plans = st.builds(
    StepPlan,
    bindings=st.just(()),
    chunks=st.lists(chunks, max_size=3).map(tuple),
    copies=st.lists(st.builds(PageCopy, numbers, numbers, st.none() | numbers), max_size=3).map(
        tuple
    ),
    clears=runs.map(tuple),
    restores=state_copies,
    snapshots=state_copies,
)
CODE = msgspec.msgpack.Encoder()
STEPS = msgspec.msgpack.Decoder(Step)


@given(st.lists(plans, min_size=1, max_size=3), runs.map(tuple))
def test_plans_arrive_as_they_were_sent(sent: list[StepPlan], rewound: tuple[int, ...]) -> None:
    """Of pages, only those travel that the slot's last chunk had not."""
    writer, reader = PlanWriter(), PlanReader()
    for plan in sent:
        step = STEPS.decode(CODE.encode(writer.write(plan, rewound=rewound)))
        assert step.rewound == rewound
        assert astuple(reader.read(step)) == astuple(plan)


@given(plans, st.data())
def test_a_plan_that_was_cut_or_has_more_is_refused(plan: StepPlan, data: st.DataObject) -> None:
    content = CODE.encode(PlanWriter().write(plan))
    end = data.draw(st.integers(0, len(content) - 1))
    for wrong in (content[:end], content + bytes(1)):
        with pytest.raises(msgspec.DecodeError):
            STEPS.decode(wrong)


def arrived(binding: Binding) -> Binding:
    plan = StepPlan((binding,), ())
    step = STEPS.decode(CODE.encode(PlanWriter(RulesWriter()).write(plan)))
    (found,) = PlanReader(RulesReader()).read(step).bindings
    return found


EVERY = SamplingParams(
    temperature=0.7,
    seed=(1 << 63) - 1,
    stop=("end", "Ende"),
    logit_bias={5: 3, 6: -math.inf},
    logits_processors={"one": {"a": [1, 2.5, None]}},
    speculation=Speculation(),
    samplers=(Stage.INFILL, Stage.XTC),
    stop_token_ids=(3,),
)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), EVERY, EmbeddingParams(), EmbeddingParams(Pooling.NONE, unit_length=False)],
)
def test_parameters_arrive_as_they_were_sent(params: SamplingParams | EmbeddingParams) -> None:
    binding = Binding(3, params, array("i", [1, 2]), [7], TokenRules(), mu=0.1)
    found = arrived(binding)
    assert found == replace(binding, prompt=[1, 2])
    assert type(found.params) is type(params)


def test_the_grammar_of_a_request_stays_in_the_engine() -> None:
    """It may have parts that are no data."""
    grammar = replace(Grammar.of("choice", ["yes"]), beginning=object())
    assert arrived(Binding(0, replace(EVERY, grammar=grammar), [], [])).params == EVERY


def test_the_parameters_of_extensions_stay_in_the_engine() -> None:
    """Their rules travel."""
    params = EVERY.having(EngramParams(engram=(EngramChoice("docs", 2.0),)))
    binding = Binding(0, params, [], [])
    assert arrived(binding).params == EVERY
    assert b"docs" not in CODE.encode(PlanWriter(RulesWriter()).write(StepPlan((binding,), ())))


def test_an_order_to_load_arrives_as_it_was_sent() -> None:
    config = configured(slots=3, engram=("a=b",), rank_timeout=9)
    order = LoadOrder("/m", "f", SentConfig.of(config), "m:load", {"a": True}, 10)
    arrived: Any = msgspec.msgpack.decode(CODE.encode(order), type=Order)
    assert arrived.config.config == config
    assert msgspec.structs.replace(arrived, config=order.config) == order


# --- results

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
PLAN = StepPlan(
    (),
    (
        Chunk(0, 0, [1, 2], [0], True, guesses=1),
        Chunk(1, 0, [1], [1], True, score=Scoring(0, [5], 1), keep_states=2),
        Chunk(2, 0, [1], [2], True),
        Chunk(3, 0, [1], [3], False, pool=Pool(0, complete=True)),
        Chunk(4, 0, [1], [3], False, pool=Pool(0, complete=False)),
    ),
)
READY = Future[None]()
LATE = Deferred(2, READY)
RESULT = StepResult(
    (Sampled(0, 4, -1.5, ((4, -1.5),), 0.1), Sampled(0, 5, -math.inf), Sampled(1, 6, 0.0), LATE),
    (Scored(1, (PromptLogprob(5, -2.0, 1, ((5, -2.0),)),)),),
    (Pooled(3, array("f", [0.5, math.inf])),),
    (ROWS,),
)


def read(result: StepResult) -> StepResult:
    message = write_result(1, result, 2.5, DeviceMemory(1, 2))
    found = msgspec.msgpack.decode(CODE.encode(message), type=Report)
    assert (found.executor, found.seconds, found.memory) == (1, 2.5, DeviceMemory(1, 2))
    return Expected(PLAN, 32).read(found, {2: READY}.get)


def test_results_arrive_as_they_were_sent() -> None:
    found = read(RESULT)
    assert found.sampled == RESULT.sampled
    assert (found.scored, found.pooled) == (RESULT.scored, RESULT.pooled)
    assert [one.tolist() for one in found.states] == [ROWS.tolist()]


FAILURE = Failed(2, EngineFailedError("it failed"))
MORE = Sampled(1, 7, 0.0)
WRONG = {
    "a token beyond the vocabulary": replace(RESULT, sampled=(Sampled(0, 32, 0.0), MORE, FAILURE)),
    "a token below 0": replace(RESULT, sampled=(Sampled(0, -1, 0.0), MORE, FAILURE)),
    "more tokens than guesses": replace(RESULT, sampled=(*RESULT.sampled, MORE)),
    "a slot that does not sample": replace(RESULT, sampled=(*RESULT.sampled, Sampled(3, 7, 0.0))),
    "a slot without an outcome": replace(RESULT, sampled=RESULT.sampled[:3]),
    "a slot whose edits are not late": replace(
        RESULT, sampled=(*RESULT.sampled[:2], replace(LATE, slot=1), FAILURE)
    ),
    "no scores": replace(RESULT, scored=()),
    "scores of another slot": replace(RESULT, scored=(replace(RESULT.scored[0], slot=0),)),
    "an embedding that is not complete": replace(
        RESULT, pooled=(*RESULT.pooled, replace(RESULT.pooled[0], slot=4))
    ),
    "fewer states": replace(RESULT, states=(ROWS[:1],)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_result_that_the_plan_did_not_ask_for_fails_the_step(wrong: StepResult) -> None:
    with pytest.raises(EngineFailedError, match=r"another plan|not late"):
        read(wrong)


@pytest.mark.parametrize(
    "content",
    [
        ["Result", 2],
        ["Result", 0, None, 0.0, None, [{"slot": "0", "token": 1, "logprob": 0.0}]],
        ["Result", 0, None, 0.0, None, [], [], [], [], "more"],
        ["Progress", -1],
        ["Step", 0],
        ["Nothing"],
        {"executor": 0},
        7,
    ],
)
def test_a_message_of_another_form_is_refused(content: Any) -> None:
    ends = socket.socketpair()
    child, parent = Channel[Message](ends[0], Order), Channel[Message](ends[1], Report)
    packed = CODE.encode(content)
    ends[0].sendall(len(packed).to_bytes(4, "little") + packed)
    with pytest.raises(msgspec.ValidationError):
        parent.receive(1.0)
    child.send(Content(memoryview(bytes(1 << 12))))
    found = parent.receive(1.0)
    assert isinstance(found, Content)
    assert found.content.nbytes == 1 << 12
    child.close()
    parent.close()


# --- errors

EXAMPLES: list[HeddleError] = [
    errors.ContextLengthError("long", param="prompt", tokens=9, context=8),
    errors.OverloadedError("full", retry_after=2.5),
    errors.ModelFileError("broken", field="tensor"),
    errors.NonFiniteLogitsError("NaN", logits={"mean": None, "nan": 3.0}),
    errors.ModelUnloadedError("away", model="m"),
    errors.StepMemoryError("no memory"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda one: type(one).__name__)
def test_errors_arrive_with_types_and_attributes(error: HeddleError) -> None:
    error.add_note("where")
    written = CODE.encode(Failure.of(error))
    found = msgspec.msgpack.decode(written, type=Failure).error
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


def test_an_error_of_a_library_names_its_type() -> None:
    error = KeyError("x")
    error.add_note("where")
    found = Failure.of(error).error
    assert type(found) is EngineFailedError
    assert (found.message, found.__notes__) == ("KeyError: 'x'", ["where"])


def test_an_error_that_this_process_does_not_know_is_a_failed_engine() -> None:
    class OwnError(errors.ConfigError):
        """Of an extension."""

    assert type(Failure.of(OwnError("wrong")).error) is errors.ConfigError
    assert type(Failure("TYPE_CHECKING", "wrong", {}, []).error) is EngineFailedError


def test_a_result_has_as_many_fields_as_the_contract() -> None:
    """A new field of a chunk or a result must travel, too."""
    assert len(fields(StepResult)) + 4 == len(Result.__struct_fields__)


def test_a_child_refuses_files_that_changed_since_the_parent_opened_them(tmp_path: Path) -> None:
    path = llama.PLAIN.checkpoint(tmp_path).path
    with open_checkpoint(path, None, family_of) as checkpoint:
        digest = files_digest(checkpoint)
        with open_same(str(path), digest) as found:
            assert found.path == path
        os.utime(next(iter(checkpoint.stamps)), ns=(1, 1))
        again = open_same(str(path), digest)
        with pytest.raises(ModelFileError, match="changed while it was loaded"), again:
            pass
