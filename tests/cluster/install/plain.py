"""An environment with the wheel and what an install brings, plain or with one extra, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from heliograph.base.version import DISTRIBUTION
from tests.cluster.install.environment import Environment


def make_plain(directory: Path, wheel: Path, extra: str = "") -> Environment:
    """Install the wheel into an environment of its own, and link the distributions that it requires with an extra, or
    with none."""
    made = Environment.create(directory, wheel)
    (made.packages / "dependencies.pth").unlink()
    (own,) = distributions(name=DISTRIBUTION, path=[str(made.packages)])
    linked: set[str] = set()
    for each in _required(own, extra, set()):
        for file in each.files or ():
            name = file.parts[0]
            if name not in ("..", "__pycache__") and name not in linked and not (made.packages / name).exists():
                linked.add(name)
                (made.packages / name).symlink_to(Path(str(each.locate_file(name))))
    return made


def _required(wanted: Distribution, extra: str, seen: set[tuple[str, str]]) -> Iterator[Distribution]:
    """Yield what a distribution with one of its extras, or "" for none, requires in this environment, and so on."""
    for text in wanted.requires or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = distribution(requirement.name)
        for chosen in ("", *requirement.extras):
            if (requirement.name, chosen) not in seen:
                seen.add((requirement.name, chosen))
                yield found
                yield from _required(found, chosen, seen)
