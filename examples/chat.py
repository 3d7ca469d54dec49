"""Talk to a model inside of this program, without a server.

$ python examples/chat.py
you    What is a loom? Answer in one sentence.
model  A loom is a tool used to create patterns on fabric by weaving threads together using a loom.
cached 0 of 40 prompt tokens
you    Who uses it? Answer in three words.
model  Loom is a tool used in weaving, but it's also a metaphor for the creative process itself.
cached 59 of 79 prompt tokens
"""

from heddle import LLM, SamplingParams

QUESTIONS = ["What is a loom? Answer in one sentence.", "Who uses it? Answer in three words."]

with LLM("smollm2-135m") as llm:
    messages = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60))
        messages.append({"role": "assistant", "content": answer.text})
        usage = answer.usage
        print("you   ", question)
        print("model ", answer.text)
        print("cached", usage.cached_tokens, "of", usage.prompt_tokens, "prompt tokens")
