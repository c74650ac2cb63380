"""How hypothesis searches: the same examples in every run, and as long as they take on a busy machine.

``pytest --hypothesis-profile=explore`` looks for new ones instead; what it finds becomes an ``@example``.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
