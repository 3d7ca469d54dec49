"""Cuts machines of a Ray cluster off the network while they answer, and says what clients see.

    sudo python benchmarks/lost_network.py

Each machine is a network namespace of Linux with a link to one bridge. The head has the connections
of clients, and no replica; each other machine has a replica. A link that is down loses all packets,
and no connection is reset. Needs root, `ip`, two cores and Ray. It takes four minutes.

1. Streams run, and nothing happens.
2. The same streams run. The link of a machine goes down: all streams are the same as before, with a
   pause of at most `--silence` seconds and the time to compute again.
3. The link goes up again, and the machine's replica answers again.
4. The links of all machines with replicas go down: each stream ends with the error `replica_lost`,
   and so does a request that comes then. If Ray has placed the ingress on one of these machines,
   streams break off instead, when Ray gives that machine up.
5. The links go up. Ray has given these machines up and ends there. When it is started there again,
   as a supervisor would do it, both replicas answer again.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NET, BRIDGE = "10.77.0", "heddle-net"
HEAD, MACHINES = "heddle-m0", ("heddle-m1", "heddle-m2")
ADDRESSES = {name: f"{NET}.{place}" for place, name in enumerate((HEAD, *MACHINES), 1)}
PORT = 8080
SILENCE, START_WAIT = 3.0, 40.0
STREAMS, TOKENS = 8, 300
PATIENCE = 100.0
REPLICA, INGRESS = "ray::ServeReplica:heddle:replicas", "ray::ServeReplica:heddle:ingress"
RAY = (sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts")


def ip(*words: str) -> None:
    """Run the command `ip`."""
    subprocess.run(["ip", *words], check=True)


@contextmanager
def network() -> Iterator[None]:
    """The bridge and the machines."""
    with ExitStack() as stack:
        ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(ip, "link", "del", BRIDGE)
        ip("addr", "add", f"{NET}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for name, address in ADDRESSES.items():
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        for name in ADDRESSES:
            for other in ADDRESSES:
                if name != other:  # or a lost neighbour is an error of the sender's own machine
                    keep_neighbour(name, other)
        yield


def keep_neighbour(name: str, other: str) -> None:
    """Let a machine send to another one without asking for it."""
    shown = ["ip", "netns", "exec", other, "cat", "/sys/class/net/eth0/address"]
    link = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
    words = ("replace", ADDRESSES[other], "lladdr", link, "dev", "eth0", "nud", "permanent")
    ip("-n", name, "neigh", *words)


def cut(*machines: str) -> None:
    """Lose all packets to and from these machines."""
    for name in machines:
        ip("link", "set", name, "down")


def mend(*machines: str) -> None:
    """Carry packets to and from these machines again."""
    for name in machines:
        ip("link", "set", name, "up")


def processes(machine: str, title: str) -> list[int]:
    """Ids of the processes of a machine whose command lines begin like this."""
    listed = subprocess.run(
        ["ip", "netns", "pids", machine], check=True, capture_output=True, text=True
    ).stdout.split()
    found = []
    for one in listed:
        try:
            line = Path(f"/proc/{one}/cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if line.startswith(title.encode()):
            found.append(int(one))
    return found


@contextmanager
def started(machine: str, folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on a machine, and end it together with all that runs there."""
    with (folder / f"{machine}.log").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", machine, *command], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pid in processes(machine, ""):
                os.kill(pid, signal.SIGKILL)


def until(is_so: Callable[[], bool], what: str) -> float:
    """Wait until a condition holds; the seconds that it took."""
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() > begun + PATIENCE:
            raise SystemExit(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.2)  # lets the cluster work
    return time.monotonic() - begun


@contextmanager
def cluster(folder: Path) -> Iterator[Callable[[str], None]]:
    """Ray on all machines. Gives the function that starts it on one of them."""
    common = ("--block", "--object-store-memory", "100000000", "--disable-usage-stats")
    with ExitStack() as stack:
        head = f"{ADDRESSES[HEAD]}:6379"

        def start(name: str) -> None:
            own = ("--temp-dir", str(folder / name), "--node-ip-address", ADDRESSES[name])
            role: tuple[str, ...] = ("--address", head, "--num-cpus", "1")
            if name == HEAD:
                role = ("--head", "--num-cpus", "0", "--include-dashboard", "false")
            stack.enter_context(started(name, folder, *RAY, "start", *role, *own, *common))
            until(lambda: bool(raylets(name)), f"Ray on {name}")

        for name in ADDRESSES:
            start(name)
        yield start


def raylets(machine: str) -> list[int]:
    """Ids of Ray's processes that make a machine a node."""
    listed = subprocess.run(
        ["ip", "netns", "pids", machine], check=True, capture_output=True, text=True
    ).stdout.split()
    return [int(one) for one in listed if "raylet/raylet" in command_line(one)]


def command_line(pid: str) -> str:
    """Of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@dataclass
class Answer:
    """What a client got of a stream.

    Attributes:
        text: what the model said.
        longest: seconds between two events at most.
        error: code of the error at the end, or what broke; empty: none.
        seconds: until the end.
    """

    text: str = ""
    longest: float = 0.0
    error: str = ""
    seconds: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)


async def ask(client: httpx.AsyncClient, number: int, answer: Answer) -> None:
    """Read a stream."""
    begun = last = time.monotonic()
    said = [{"role": "user", "content": f"Tell a long story about number {number}."}]
    body: dict[str, Any] = {"messages": said, "seed": number, "max_tokens": TOKENS}
    body |= {"stream": True, "ignore_eos": True, "temperature": 1.0}
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                answer.error = json.loads(await response.aread())["error"]["code"]
            async for line in response.aiter_lines():
                now = time.monotonic()
                answer.longest, last = max(answer.longest, now - last), now
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    answer.error = event.get("error", {}).get("code", answer.error)
                    for choice in event.get("choices", ()):
                        answer.text += choice["delta"].get("content") or ""
                    if len(answer.text) > 200:
                        answer.begun.set()
    except httpx.HTTPError as error:
        answer.error = repr(error)
    answer.seconds = time.monotonic() - begun
    answer.begun.set()


async def ask_all(url: str, then: Callable[[], None] = lambda: None) -> list[Answer]:
    """Streams at once. When all have begun, `then` is called."""
    answers = [Answer() for _ in range(STREAMS)]
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        tasks = [asyncio.create_task(ask(client, *one)) for one in enumerate(answers)]
        for answer in answers:
            await answer.begun.wait()
        then()
        await asyncio.gather(*tasks)
    return answers


def tell(what: str, answers: list[Answer], calm: list[Answer]) -> None:
    """Print what clients saw."""
    equal = sum(one.text == other.text for one, other in zip(answers, calm, strict=True))
    print(f"{what}: {equal} of {len(calm)} streams equal")
    for one in answers:
        seconds = f"{one.seconds:5.1f} s, longest pause {one.longest:5.2f} s"
        print(f"  {len(one.text):5} letters, {seconds}  {one.error}", flush=True)


def replicas_that_tell(url: str) -> float:
    """How many replicas tell their metrics; 0.0: the ingress does not know them all."""
    try:
        text = httpx.get(f"{url}/metrics", timeout=2 * SILENCE).text
    except httpx.HTTPError:
        return 0.0
    lines = [line for line in text.splitlines() if line.startswith("heddle_replicas ")]
    return float(lines[0].split()[1]) if lines else 0.0


def run(url: str, start: Callable[[str], None]) -> None:
    """Ask, cut links, and start Ray again where it has ended."""
    where = {name: (processes(name, REPLICA), processes(name, INGRESS)) for name in ADDRESSES}
    print("replicas and ingresses:", {name: tuple(map(len, one)) for name, one in where.items()})
    victim = next(one for one in reversed(MACHINES) if not where[one][1])
    calm = asyncio.run(ask_all(url))
    tell("calm", calm, calm)
    tell(f"{victim} is lost", asyncio.run(ask_all(url, lambda: cut(victim))), calm)
    tell("while it is lost", asyncio.run(ask_all(url)), calm)
    mend(victim)
    took = until(lambda: replicas_that_tell(url) == len(MACHINES), "both replicas")
    print(f"link up: both replicas answer after {took:.1f} s")
    tell("after", asyncio.run(ask_all(url)), calm)
    tell("all replicas are lost", asyncio.run(ask_all(url, lambda: cut(*MACHINES))), calm)
    late = Answer()

    async def ask_late() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            await ask(client, 0, late)

    asyncio.run(ask_late())
    print(f"a request that comes then: {late.error or 'no error'} after {late.seconds:.1f} s")
    mend(*MACHINES)
    took = until(lambda: not any(map(raylets, MACHINES)), "the end of Ray on the machines")
    print(f"links up: Ray has ended on the machines after {took:.1f} s", flush=True)
    begun = time.monotonic()
    for name in MACHINES:
        start(name)
    until(lambda: replicas_that_tell(url) == len(MACHINES), "both replicas")
    print(f"Ray started there: both replicas answer after {time.monotonic() - begun:.1f} s")
    tell("after that", asyncio.run(ask_all(url)), calm)


def main() -> None:
    """Make the network, deploy, and run."""
    if os.geteuid() or not shutil.which("ip"):
        raise SystemExit("this needs root and the command `ip`")
    settings = (
        *("--address", f"{ADDRESSES[HEAD]}:6379", "--host", "0.0.0.0", "--port", str(PORT)),
        *("--replicas", str(len(MACHINES)), "--silence", str(SILENCE)),
        *("--start-wait", str(START_WAIT), "--kv-cache", "64M", "--context", "1024"),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the network would stay
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory() as name, network(), cluster(Path(name)) as start:
        command = (sys.executable, "-W", "ignore", "-m", "heddle", "deploy", *settings)
        begun = time.monotonic()
        where = ["ip", "netns", "exec", HEAD, *command]
        subprocess.run(where, check=True, timeout=PATIENCE)
        print(f"deployed after {time.monotonic() - begun:.1f} s", flush=True)
        run(f"http://{ADDRESSES[HEAD]}:{PORT}", start)


if __name__ == "__main__":
    main()
