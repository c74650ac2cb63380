"""The command ``python -m tests.soak``: a default cluster under what comes and goes, and what grew meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from heliograph.client.access import connect_async
from tests.bench.machine import ROOT
from tests.bench.rest.rest import run_helio
from tests.soak.fit import fit, verdict
from tests.soak.load import Soak
from tests.soak.sampling import TOLERANCES, Series, look

SAMPLES = 120  # of a run
SAMPLE_SECONDS_LEAST = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load and print what the parts did. Return 1 if a piece failed or a part grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=ROOT / "soak-results", help="where the data goes")
    options = parser.parse_args(arguments)
    logging.getLogger("heliograph").setLevel(logging.ERROR)
    options.directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="soak-", dir=options.directory))
    where = [f"--home={home}", f"--namespace=soak-{os.getpid()}"]
    try:
        run_helio("up", *where, *(f"--{port}-port=0" for port in ("broker", "gateway", "dashboard")))
        state = json.loads((home / "cluster.json").read_text())
        return asyncio.run(_soak(options.hours * 3_600, home, state))
    finally:
        try:
            run_helio("down", *where, "--delete-data")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"the cluster was not stopped: {error}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)


async def _soak(seconds: float, home: Path, state: dict[str, str]) -> int:
    service_url, http_url, session = state["service_url"], state["gateway_url"], int(state["ray_pid"])
    client = await connect_async(service_url)
    soak, series, began = Soak(client, service_url, http_url), Series(), time.monotonic()
    pause, samples = max(SAMPLE_SECONDS_LEAST, seconds / SAMPLES), home.with_suffix(".json")  # kept for a closer look

    async def watch() -> None:
        while True:
            await asyncio.to_thread(look, series, session, home, http_url, began)
            samples.write_text(json.dumps([[*key, points] for key, points in series.items()]))
            await asyncio.sleep(pause)

    watching = asyncio.create_task(watch())
    try:
        await soak.run(lambda: time.monotonic() - began > seconds)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await client.close()
    return report(soak, series)


def report(soak: Soak, series: Series) -> int:
    """Print what was done and how each series of each part ended. Return 1 if something is wrong."""
    rounds = ", ".join(f"{name} {count:,}" for name, count in sorted(soak.rounds.items()))
    print(f"{soak.messages:,} messages; rounds: {rounds}")
    for name, failures in sorted(soak.failures.items()):
        print(f"FAILED {len(failures):,} rounds of {name}, the last: {failures[-1]}")
    growing = 0
    for (part, unit), points in sorted(series.items()):
        found = fit(points)
        growing += not found.note and not found.is_flat(TOLERANCES[unit])
        print(f"{part}: {found.last:,.1f} {unit}, {verdict(found, unit, TOLERANCES[unit])}")
    return 1 if soak.failures or growing else 0


if __name__ == "__main__":
    sys.exit(main())
