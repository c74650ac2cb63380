"""Keys of schedules, and letters of letters."""

from __future__ import annotations

import pytest

from heliograph.client.aio.producer.arguments import HEAD_BYTES_MAX
from heliograph.errors import BadRequestError
from heliograph.tasks.records import REASON, TRACEBACK, letter_properties
from tests.unit.tasks.test_schedules import Made


async def test_a_schedule_whose_jobs_have_too_long_a_key_is_refused_at_the_call(made: Made) -> None:
    @made()
    async def report(text: str) -> str:
        return text

    with pytest.raises(BadRequestError) as refused:
        await report.schedule("a", "0 * * * *", ("x",), key="k" * 4_097)
    assert refused.value.field == "key"


@pytest.mark.parametrize(
    "kept", [{TRACEBACK: "x" * 7_000}, {"heliograph.note": "x" * 7_100, "heliograph.source": "a b"}]
)
def test_a_letter_of_a_letter_says_why_and_fits(kept: dict[str, str]) -> None:
    made = letter_properties("k" * 100, kept, "ValueError: no", "a traceback")
    assert sum(len(name) + len(value) for name, value in made.items()) + 100 <= HEAD_BYTES_MAX
    assert made[REASON] == "ValueError: no"
