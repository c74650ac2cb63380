"""What an operator who knows Pulsar, but not this project, reads on the first page after a bookie was killed."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import SHOWN_SECONDS, Opened
from tests.browser.console import Console

# Times that the page has asked for the status when all stands on it. It asks each 2 s, so this is within ten seconds.
LOOKS_MAX = 5
_TIME = r"about \d+(\.\d)? (s|min|h)"


def read_as_a_stranger(opened: Opened, url: str, lost: str, subscription: str, topic: str) -> Console:
    """Open the console for the first time, and assert each of the sentences that a stranger needs, without a click."""
    console = opened(url)
    page = console.go()
    findings = page.locator("#findings li")
    died = findings.filter(has_text=re.compile(rf"^\W*{re.escape(lost)} is down:"))
    lacking = findings.filter(has_text=re.compile(r"\d+ ledgers? ha(s|ve) fewer copies than wanted"))
    behind = findings.filter(has_text=re.compile(rf"{subscription} of {topic} is [\d,]+ messages behind"))
    sentences = [
        (died, r"For clients: publishing and reading go on with the other copies"),  # what died
        (lacking, r"Meanwhile: repair goes on with \d+ of them now"),  # what is being repaired
        (lacking, rf"and is done in {_TIME}"),  # when it will be done
        (behind, r"Meanwhile: no consumer is connected"),  # which subscription falls behind
        (died, rf"What helps: helio logs {lost} copy"),  # which commands help
        (lacking, r"What helps: helio ledgers repair-status copy"),
        (behind, rf"What helps: helio topics stats {topic} copy"),
    ]
    for finding, sentence in sentences:
        expect(finding).to_contain_text(re.compile(sentence), timeout=SHOWN_SECONDS * 1000)
    verdict = re.compile("degraded since .*, publishing goes on.*nothing is lost")
    expect(page.locator("#verdict")).to_contain_text(verdict)
    looks = sum(address.endswith("/status") for address in console.addresses)
    assert looks <= LOOKS_MAX, f"a stranger reads all of it after {looks} looks"
    return console
