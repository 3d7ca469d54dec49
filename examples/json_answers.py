"""Get JSON that a schema allows: the engine samples no token that would violate it.

$ python examples/json_answers.py
John        30  smith
Lasherus    25  weaver
Ares        24  smith
Fiona       18  smith
Oniya       18  miller
"""

import json

from heddle import LLM, Grammar, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "trade": {"enum": ["weaver", "smith", "miller"]},
    },
    "required": ["name", "age", "trade"],
    "additionalProperties": False,
}
PROMPTS = [f"Somebody else from the village, in JSON, number {n}:" for n in range(1, 6)]

params = [SamplingParams(grammar=Grammar.json_schema(PERSON), seed=n) for n in range(5)]
with LLM("smollm2-135m") as llm:
    for output in llm.generate(PROMPTS, params):
        person = json.loads(output.text)
        print(f"{person['name']:10} {person['age']:3}  {person['trade']}")
