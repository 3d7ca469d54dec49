"""The progress of downloads and loading, on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from heddle.weights.progress import Bar, Lines, on_console


def test_a_log_gets_one_plain_line_for_each_download() -> None:
    output = io.StringIO()
    progress = on_console(Console(file=output, width=20))
    assert type(progress) is Lines
    for total in (98_362_432, None):
        progress.start("downloading a-model-with-[long]-name", total)
        for done in range(0, 90_000_000, 1_000_000):
            progress.update(done)
        progress.finish()
    progress.note("a note")
    assert output.getvalue() == (
        "downloading a-model-with-[long]-name (98 MB)\n"
        "downloading a-model-with-[long]-name\n"
        "a note\n"
    )


def test_a_terminal_bar_ends_at_the_size_of_the_download() -> None:
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


def test_files_of_a_download_have_bars_of_their_own_until_they_are_there() -> None:
    output = io.StringIO()
    progress = on_console(Console(file=output, width=100, force_terminal=True))
    progress.start("downloading org/name", 30_000_000)
    for name, done in (("a.gguf", 4_000_000), ("b.gguf", 7_000_000), ("a.gguf", 10_000_000)):
        progress.part(name, done, {"a.gguf": 10_000_000, "b.gguf": 20_000_000}[name])
        progress.update(done)
    progress.finish()
    frames = output.getvalue().split("downloading org/name")
    assert "b.gguf" in frames[-1]
    assert "7.0/20.0 MB" in frames[-1]
    assert "10.0/30.0 MB" in frames[-1]
    assert "a.gguf" not in frames[-1]


def test_quick_work_logs_no_line() -> None:
    output = io.StringIO()
    progress = on_console(Console(file=output))
    progress.start("loading", 100, quick=True)
    progress.update(50)
    progress.finish()
    assert output.getvalue() == ""


def test_the_bar_of_quick_work_is_removed() -> None:
    shown = {}
    for quick in (False, True):
        output = io.StringIO()
        progress = on_console(Console(file=output, width=100, force_terminal=True))
        progress.start("loading", 2_000_000, quick=quick)
        progress.update(2_000_000)
        progress.finish()
        shown[quick] = output.getvalue()
        assert "2.0/2.0 MB" in shown[quick]
    erase_line = "\x1b[2K"
    assert shown[True].count(erase_line) > shown[False].count(erase_line)
