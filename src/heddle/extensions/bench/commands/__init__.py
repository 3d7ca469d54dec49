"""`heddle bench`: a module for each benchmark."""

from __future__ import annotations

from typing import Any

from heddle.cli.help import VARIABLES, Command, Group, group
from heddle.extensions.bench.commands.load import bench_load
from heddle.extensions.bench.commands.prefix import bench_prefix
from heddle.extensions.bench.commands.speed import bench
from heddle.extensions.bench.commands.stress import bench_stress

_BENCH_HELP = """Measure the speed of Heddle, or of another server.

Without the name of a benchmark, this is `heddle bench speed`: `heddle bench MODEL` measures MODEL.
"""


class _BenchGroup(Group):
    """Runs the named benchmark; arguments without a name go to `speed`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not (args and args[0] in {*self.commands, *ctx.help_option_names}):
            args = ["speed", *args]
        return super().parse_args(ctx, args)


benches = group(_BenchGroup, help=_BENCH_HELP)
for name, benchmark in {
    "speed": bench,
    "prefix": bench_prefix,
    "load": bench_load,
    "stress": bench_stress,
}.items():
    benches.command(name, cls=Command, epilog=VARIABLES)(benchmark)
