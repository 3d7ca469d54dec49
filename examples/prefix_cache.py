"""Ask three questions about one long text: the engine computes the text once.

$ python examples/prefix_cache.py
Who brings 7 apples? -> Rule 1: who comes 7 minutes late brings 7 apples.
  cached 0 of 1132 prompt tokens, first token after 2739 ms
What does rule 9 say? -> Rule 9 is a type of logical fallacy known as a "false dichotomy"
  cached 1120 of 1133 prompt tokens, first token after 45 ms
How many rules are there? -> There are 11 rules in total.
  cached 1120 of 1132 prompt tokens, first token after 36 ms
"""

from heddle import LLM, SamplingParams

RULES = [f"Rule {n}: who comes {n} minutes late brings {n} apples." for n in range(1, 61)]
QUESTIONS = ["Who brings 7 apples?", "What does rule 9 say?", "How many rules are there?"]

with LLM("smollm2-135m") as llm:
    for question in QUESTIONS:
        messages = [
            {"role": "system", "content": "\n".join(RULES)},
            {"role": "user", "content": question},
        ]
        output = llm.chat(messages, SamplingParams(temperature=0, max_tokens=16))
        usage = output.usage
        print(question, "->", output.text.strip())
        print(f"  cached {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens,", end=" ")
        print(f"first token after {usage.prompt_seconds * 1000:.0f} ms")
