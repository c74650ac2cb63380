"""What programs read from standard output is the result and nothing else."""

from __future__ import annotations

import sys
import threading

import pytest

from heliograph.cli.output import OwnOutput


def test_what_another_thread_prints_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", OwnOutput(sys.stdout))
    print("a line of the result")
    other = threading.Thread(target=print, args=("news of a node",))
    other.start()
    other.join()
    print("its end", flush=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a line of the result\nits end\n", "news of a node\n")
