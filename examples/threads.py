"""Ask from eight threads at once: the engine computes their tokens in shared steps.

$ python examples/threads.py
sea     calm, and the stars shone brightly in the sky. I
sky     a deep, foreboding grey, and the wind was
moon    full, and the stars shone brightly in the sky.
forest  still alive with the sound of the forest. The trees seemed
city    a place of contrasts. The old, the vibrant, the
river   full of fish. I was a fisherman, and I had
desert  a place of endless darkness. I was a ghost, a
village abuzz with the news of the recent discovery of a
96 tokens in 13 steps
the same bits one after another: True
"""

from concurrent.futures import ThreadPoolExecutor

from heddle import Engine, SamplingParams

PLACES = ["sea", "sky", "moon", "forest", "city", "river", "desert", "village"]


def tell(place: str) -> str:
    """Continue a sentence. The answer has the same bits as if this thread were alone."""
    params = SamplingParams(temperature=0, max_tokens=12)
    return engine.complete(f"Last night, the {place} was", params).text


with Engine.load("smollm2-135m") as engine:
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(tell, PLACES))
    snapshot = engine.snapshot()
    for place, text in zip(PLACES, together, strict=True):
        print(f"{place:8}{text.strip()}")
    print(snapshot.generated_tokens, "tokens in", snapshot.steps, "steps")
    print("the same bits one after another:", together == [tell(place) for place in PLACES])
