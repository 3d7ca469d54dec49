"""Stream four answers at once from a server with OpenAI's client, and show who writes when.

$ pip install openai
$ heddle serve &
$ python examples/stream_openai.py
A cat is a majestic creature with a fluffy coat, a
The dog, a loyal and curious companion, was on a
The majestic and majestic whale, with its sleek black coat and
The owl's piercing blue eyes seemed to hold a world of
order of arrival: cwodwwcowcodwcodwcodwcodwcodwcodwcodwcodwcodwwcodccooddd
"""

import asyncio
import sys

from openai import AsyncOpenAI

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
ANIMALS = ["cat", "dog", "whale", "owl"]


async def describe(client: AsyncOpenAI, animal: str, order: list[str]) -> str:
    """Read one stream; note in `order` each time that a part of it arrives."""
    message = {"role": "user", "content": f"Write one sentence about a {animal}."}
    text = ""
    stream = await client.chat.completions.create(
        model="smollm2-135m", messages=[message], temperature=0, max_tokens=12, stream=True
    )
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        order.append(animal[0])
    return text


async def main() -> None:
    order: list[str] = []
    async with AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key="unused") as client:
        for text in await asyncio.gather(*(describe(client, one, order) for one in ANIMALS)):
            print(text)
    print("order of arrival:", "".join(order))


asyncio.run(main())
