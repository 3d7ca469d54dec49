"""What a download shows on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from heddle.weights.progress import Bar, Lines, on_console


def test_a_log_gets_one_plain_line_per_download() -> None:
    output = io.StringIO()
    progress = on_console(Console(file=output, width=20))
    assert type(progress) is Lines
    for total in (98_362_432, None):
        progress.start("a-model-with-[long]-name", total)
        for done in range(0, 90_000_000, 1_000_000):
            progress.update(done)
        progress.finish()
    progress.note("a note")
    assert output.getvalue() == (
        "downloading a-model-with-[long]-name (98 MB)\n"
        "downloading a-model-with-[long]-name\n"
        "a note\n"
    )


def test_a_terminal_gets_a_bar_that_ends_where_the_download_does() -> None:
    output = io.StringIO()
    progress = on_console(Console(file=output, width=100, force_terminal=True))
    assert type(progress) is Bar
    for label, total in (("[first]", 200_000_000), ("second", None)):
        progress.start(label, total)
        progress.update(150_000_000)
        progress.finish()
    text = output.getvalue()
    assert "[first]" in text
    assert "150.0/200.0 MB" in text
    assert "second" in text
