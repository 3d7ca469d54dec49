"""Runs the steps of a Dockerfile in a chroot, then its server, where no container engine is.

    python scripts/run_image.py [--file deploy/Dockerfile] [--work FOLDER] [--models FOLDER]

It needs root, Linux, debootstrap and Debian's mirror. The base images are made by debootstrap and
stripped as Debian's slim images are. RUN steps and the server see the network of this machine, and
its files of `HOST_FILES`. The server runs as the image's user, with a read-only root, a folder of
/tmp, and a folder for the volume. The script fails if

- the files of the image take more than `--most-mb`;
- the health check does not pass, or fails once it has passed;
- a process can write outside of the volume and /tmp;
- a stream that runs at SIGTERM is not finished, or the server does not exit with 0.

`--work` keeps the base and the stages: a stage whose steps have not changed is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs")
"""Files of this machine with names of hosts, and so that pip reaches its index."""
SLIM = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/groff")
"""What Debian's slim images leave out."""
START_SECONDS = 600.0


@dataclass
class Stage:
    """A stage of a Dockerfile: its base image, its name, and its instructions after FROM."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, keyword: str) -> str | None:
        """The arguments of the last instruction with that keyword."""
        return next((text for one, text in reversed(self.steps) if one == keyword), None)

    def environment(self) -> dict[str, str]:
        """The variables of ENV instructions."""
        texts = [text for keyword, text in self.steps if keyword == "ENV"]
        pairs = (word.partition("=") for text in texts for word in shlex.split(text))
        return {name: value for name, _, value in pairs}

    def command(self) -> list[str]:
        """The words of ENTRYPOINT and CMD, which must be lists."""
        words = (json.loads(self.last(one) or "[]") for one in ("ENTRYPOINT", "CMD"))
        return [word for part in words for word in part]

    def health_check(self) -> list[str]:
        """The words of the health check's command, which must be a list."""
        words: list[str] = json.loads((self.last("HEALTHCHECK") or "CMD []").partition("CMD ")[2])
        return words


def stages_of(dockerfile: str) -> list[Stage]:
    """The stages of a Dockerfile.

    Raises:
        ValueError: the file begins with another instruction than FROM.
    """
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, _, text = line.strip().partition(" ")
        if not keyword:
            continue
        if keyword == "FROM":
            base, _, name = text.partition(" AS ")
            stages.append(Stage(base, name))
        elif not stages:
            raise ValueError(f"{keyword} stands before FROM; begin the file with FROM")
        else:
            stages[-1].steps.append((keyword, " ".join(text.split())))
    return stages


class Builder:
    """Runs the steps of stages. Each stage's root is a folder of `work`."""

    def __init__(self, work: Path, sources: Path) -> None:
        self._work = work
        self._sources = sources
        self._roots: dict[str, Path] = {}

    def build(self, stage: Stage) -> Path:
        """The root of the stage. Runs its steps unless a run before this one has."""
        said = f"{stage} {self._sources_digest() if stage.name else sorted(self._roots.values())}"
        root = self._work / f"stage-{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        self._roots[stage.name] = root
        if root.exists():
            return root
        half = root.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        run("cp", "-a", str(self._base(stage.base)), str(half))
        for keyword, text in stage.steps:
            print(f"{keyword} {text[:90]}", flush=True)
            if keyword == "RUN":
                run_in(half, text)
            elif keyword == "COPY":
                self._copy(half, shlex.split(text))
        half.rename(root)
        return root

    def _base(self, image: str) -> Path:
        """A root of Debian for `debian:SUITE-slim`."""
        name, _, tag = image.partition(":")
        if name != "debian" or not tag.endswith("-slim"):
            raise ValueError(f"{image}: the script can only make debian:SUITE-slim")
        root = self._work / f"base-{tag}"
        if not root.exists():
            half = root.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            run("debootstrap", "--variant=minbase", tag.removesuffix("-slim"), str(half))
            for place in (*SLIM, "var/cache/apt", "var/lib/apt/lists", "var/log"):
                shutil.rmtree(half / place, ignore_errors=True)
                (half / place).mkdir(parents=True)
            half.rename(root)
        return root

    def _copy(self, root: Path, words: list[str]) -> None:
        source, target = words[-2], root / words[-1].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if words[0].startswith("--from="):
            origin = self._roots[words[0].removeprefix("--from=")] / source.lstrip("/")
            run("cp", "-a", str(origin), str(target))
            return
        for file in self.context():
            place = target / file.relative_to(self._sources)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)

    def context(self) -> list[Path]:
        """The files that `.dockerignore` lets through. It names what may, after `*`."""
        lines = (self._sources / ".dockerignore").read_text("utf-8").split()
        named = [self._sources / line[1:] for line in lines if line.startswith("!")]
        hidden = [line for line in lines[1:] if not line.startswith("!")]
        files = (file for one in named for file in (one.rglob("*") if one.is_dir() else [one]))
        return sorted(
            file
            for file in files
            if file.is_file()
            and not any(part.match(one) for one in hidden for part in (file, *file.parents))
        )

    def _sources_digest(self) -> str:
        digest = hashlib.sha256()
        for file in self.context():
            digest.update(f"{file}\0".encode() + file.read_bytes())
        return digest.hexdigest()


def run(*command: str) -> None:
    """Run a command; the script ends if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)[:300]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


MOUNTS = """
mount --make-rprivate / && mount --bind "$ROOT" "$ROOT" && cd "$ROOT"
mount -t proc proc proc && mount --rbind /dev dev
"""


def run_in(root: Path, text: str) -> None:
    """Run a RUN step with the shell of the root, as its root user."""
    lines = [MOUNTS, *host_files(root)]
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    clean = f"env -i PATH={path} HOME=/root DEBIAN_FRONTEND=noninteractive"
    lines.append(f'exec chroot . {clean} sh -c "$STEP"')
    inside(lines, {"ROOT": str(root), "STEP": text})


def host_files(root: Path) -> list[str]:
    """The commands that show a root the files of this machine."""
    lines = []
    for path in filter(os.path.exists, HOST_FILES):
        place = root / path.lstrip("/")
        if Path(path).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        lines.append(f"mount --bind {path} .{path}")
    return lines


def inside(lines: list[str], variables: dict[str, str]) -> None:
    """Run a script in mount and process namespaces of its own."""
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", "\n".join(lines)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | variables
    )
    if done.returncode:
        sys.exit(f"{variables.get('STEP', '')}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


class Container:
    """The server of an image, and commands beside it: its user, a read-only root, the volume."""

    def __init__(self, root: Path, stage: Stage, volume: Path, port: int) -> None:
        self._stage = stage
        self._port = port
        user = int(stage.last("USER") or "0")
        if not user:
            sys.exit("the image runs as root; it needs a USER")
        os.chown(volume, user, user)
        variables = stage.environment() | {"HEDDLE_PORT": str(port), "HEDDLE_HOST": "127.0.0.1"}
        given = shlex.join(f"{name}={value}" for name, value in variables.items())
        self._enter = (
            f"exec setpriv --no-new-privs chroot --userspec={user}:{user} . env -i {given}"
        )
        lines = [
            MOUNTS,
            *host_files(root),
            f'mount --bind "$VOLUME" .{stage.last("VOLUME")}',
            "mount -t tmpfs -o nosuid,nodev,noexec tmpfs tmp && mount -o remount,bind,ro .",
            f"{self._enter} {shlex.join(stage.command())}",
        ]
        self.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", "\n".join(lines)],
            env=os.environ | {"ROOT": str(root), "VOLUME": str(volume)},
        )

    def run(self, *words: str) -> int:
        """The exit status of a command in the same namespaces, as the same user."""
        root = Path(f"/proc/{self.process.pid}/root").readlink()
        line = f"cd {shlex.quote(str(root))} && {self._enter} {shlex.join(words)}"
        enter = ["nsenter", f"--target={self.process.pid}", "--mount"]
        done = subprocess.run([*enter, "sh", "-ec", line], check=False, capture_output=True)
        return done.returncode

    def wait_until_healthy(self) -> None:
        """Run the health check each second until it passes."""
        end = time.monotonic() + START_SECONDS
        while self.run(*self._stage.health_check()):
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit("the health check did not pass")
            time.sleep(1)

    def stream_until_stopped(self) -> int:
        """Begin a stream, send SIGTERM after its first event, and read it. Returns its events."""
        body = {"prompt": "One, two,", "max_tokens": 200, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            events = [next(answer)]
            self.process.send_signal(signal.SIGTERM)
            events += [line for line in answer if line.startswith(b"data: ")]
        if events[-1].strip() != b"data: [DONE]":
            sys.exit(f"SIGTERM ended a stream: {events[-1]!r}")
        return len(events)


def size_mb(root: Path) -> float:
    """Millions of bytes of the files of a root, each once."""
    found = {}
    for path in root.rglob("*"):
        told = path.lstat()
        found[told.st_ino] = 0 if stat.S_ISDIR(told.st_mode) else told.st_size
    return sum(found.values()) / 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--file", type=Path, default=ROOT / "deploy" / "Dockerfile")
    options.add_argument("--work", type=Path, help="folder that keeps stages; default: a new one")
    options.add_argument("--models", type=Path, help="the volume; default: an empty folder")
    options.add_argument("--port", type=int, default=18080)
    options.add_argument("--most-mb", type=float, default=250.0)
    given = options.parse_args()
    if os.geteuid() or not shutil.which("debootstrap"):
        print("The image was not run: it needs root and debootstrap")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="heddle-image-") as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        builder = Builder(work, ROOT)
        stages = stages_of(given.file.read_text("utf-8"))
        roots = [builder.build(stage) for stage in stages]
        size = size_mb(roots[-1])
        print(f"the image has {size:.0f} MB of files")
        volume = given.models or Path(folder, "models")
        volume.mkdir(exist_ok=True)
        check(Container(roots[-1], stages[-1], volume, given.port))
    if size > given.most_mb:
        sys.exit(f"{size:.0f} MB are more than {given.most_mb:.0f} MB")


def check(container: Container) -> None:
    """Run the server, look at it, and stop it while a stream runs."""
    try:
        container.wait_until_healthy()
        for place in ("/", "/etc", "/opt/heddle/bin", "/home/heddle"):
            if not container.run("touch", f"{place}/written"):
                sys.exit(f"the server's user can write to {place}")
        for place in ("/models", "/tmp"):
            if container.run("touch", f"{place}/written"):
                sys.exit(f"the server's user cannot write to {place}")
        events = container.stream_until_stopped()
        code = container.process.wait(60)
    finally:
        container.process.kill()
    if code:
        sys.exit(f"after SIGTERM the server exited with {code}")
    print(f"healthy, read-only, drained: {events} events of a stream, then exit status 0")


if __name__ == "__main__":
    main()
