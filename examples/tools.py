"""Let a model call a function: send the schema, run the call, send its result back.

$ pip install openai
$ heddle serve &
$ python examples/tools.py
call     get_weather {"city": "Oslo"}
result   4 degrees, snow
answer   The weather in Oslo is quite extreme, with a high of 4 degrees and a high of 4 degrees.
"""

import json
import sys

from openai import OpenAI

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
WEATHER = {"Paris": "18 degrees, sunny", "Oslo": "4 degrees, snow"}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": [*WEATHER]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS, "strict": True}

client = OpenAI(base_url=f"{ADDRESS}/v1", api_key="unused")


def ask(messages: list, choice: str):
    tools = [{"type": "function", "function": FUNCTION}]
    options = {"temperature": 0, "max_tokens": 40, "parallel_tool_calls": False}
    return client.chat.completions.create(
        model="smollm2-135m", messages=messages, tools=tools, tool_choice=choice, **options
    )


messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
message = ask(messages, "required").choices[0].message
[call] = message.tool_calls
print("call    ", call.function.name, call.function.arguments)
result = WEATHER[json.loads(call.function.arguments)["city"]]
print("result  ", result)
reply = {"role": "tool", "tool_call_id": call.id, "content": result}
messages += [message.model_dump(exclude_none=True), reply]
print("answer  ", ask(messages, "none").choices[0].message.content)
