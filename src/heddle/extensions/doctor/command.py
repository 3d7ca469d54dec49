"""`heddle doctor`: checks one after another, a line for each."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import typer

from heddle.cli.options import AsJson, ConfigFile
from heddle.extensions.doctor.findings import Finding, State

_WIDTH = 13
"""Columns for the name of a check."""


def doctor(*, settings_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check what a server needs: machine, disks, network, devices, settings. Says what to do.

    The exit code is 1 if a check fails.
    """
    findings = []
    for finding in _findings(settings_file):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:5} {finding.check:{_WIDTH}} {finding.said}", flush=True)
            if finding.advice:
                print(f"{'':5} {'':{_WIDTH}} {finding.advice}", flush=True)
    if as_json:
        print(json.dumps([asdict(one) for one in findings], indent=2))
    if any(one.state is State.FAIL for one in findings):
        raise typer.Exit(1)


def _findings(file: str | None) -> Iterator[Finding]:
    from heddle.extensions.doctor import machine, settings

    known = settings.Settings()
    yield from known.read(file)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "cores": partial(machine.cores, known.engine),
        "levels": partial(machine.levels, known.engine),
        "memory": partial(machine.memory, known.engine),
        "disks": partial(machine.disks, known.engine),
        "limits": partial(machine.limits, known.engine),
        "devices": partial(machine.gpus, known.engine),
        "address": partial(settings.address, known.server),
        "network": partial(settings.network, known.engine),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:  # the other checks go on
            said = f"the check failed: {type(error).__name__}: {error}"
            yield Finding(name, said, State.FAIL, "HEDDLE_DEBUG=1 heddle serve may show why")
