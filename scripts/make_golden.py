"""Write the greedy outputs that `tests/golden/test_golden.py` expects of a model.

    python scripts/make_golden.py ALIAS

Writes `tests/golden/ALIAS.json`. Each prompt runs alone, at the machine's best instruction level.
All other ways to run a prompt must give the same tokens, so the file changes only with the
arithmetic. Write it again only after an intended change, and give the reason in the commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from heddle import LLM, EngineConfig, SamplingParams

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
NEW_TOKENS = 48
SQUARES = " ".join(f"{i} times {i} is {i * i}." for i in range(1, 81))  # some 800 tokens

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "a",
    " ",
    "\n\n",
    "1 2 3 4 5 6",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    SQUARES,
    "def fibonacci(n):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM",
    '{"name": "Ada", "born": 18',
    "Es war einmal in einem kleinen Dorf",
    "今日の天気は",
    "Сегодня утром мы",
    "🙂🙃",
]
MORE_PROMPTS = [  # for a model without a chat template
    "Q: Why is the sky blue?\nA:",
    "Il était une fois",
    "3.14159265358979",
    "# Shopping list\n\n- milk\n- ",
]
CHATS = [
    [{"role": "user", "content": "Name three colours."}],
    [{"role": "user", "content": "Write a Python function that reverses a string."}],
    [
        {"role": "system", "content": "You answer in French."},
        {"role": "user", "content": "Good morning! How are you?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name?"},
    ],
]


def make(alias: str) -> list[dict[str, Any]]:
    """Prompt, token ids and text of every output."""
    with LLM(alias, EngineConfig(slots=1)) as llm:
        model = llm.engine.model
        asked: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
        if model.template is None:
            asked += [{"prompt": prompt} for prompt in MORE_PROMPTS]
        else:
            asked += [{"messages": messages} for messages in CHATS]
        prompts = [
            one["prompt"] if "prompt" in one else model.chat_prompt(one["messages"])
            for one in asked
        ]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NEW_TOKENS))
    return [
        one | {"tokens": [token.token for token in output.tokens], "text": output.text}
        for one, output in zip(asked, outputs, strict=True)
    ]


def main() -> None:
    [alias] = sys.argv[1:]
    lines = [json.dumps(one, ensure_ascii=False) for one in make(alias)]
    path = GOLDEN / f"{alias}.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{len(lines)} outputs in {path}")


if __name__ == "__main__":
    main()
