"""Maven projects: their libraries are fetched once, their sources are compiled once, both outside of the repository.

The class path is kept by the hash of ``pom.xml`` and the properties, the classes by that of the sources besides.
A machine that cannot reach Maven Central skips the tests; a source that does not compile fails them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.support.tools import cache_folder, need

RESOLVE_SECONDS_MAX = 400
COMPILE_SECONDS_MAX = 120
HEAP_MAX = "384m"
# Pulsar's client reaches into the JDK for direct memory, which Java 17 only lets it do by these.
OPENED = ("java.base/java.nio", "java.base/jdk.internal.misc", "java.base/sun.nio.ch", "java.base/java.lang")


@dataclass(frozen=True)
class JavaProject:
    """A compiled project with the libraries that it needs."""

    class_path: str

    def command(self, main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs a class; ``options`` are those of the JVM."""
        opened = [option for package in OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
        # The first compiler alone: a short program ends before the second one pays.
        jvm = [f"-Xmx{HEAP_MAX}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *opened]
        jvm.append("-Dio.netty.tryReflectionSetAccessible=true")
        return [need("java"), *jvm, *options, "-cp", self.class_path, main_class, *arguments]


def build(folder: Path, **properties: str) -> JavaProject:
    """Return a project, built if it was not built before.

    Args:
        folder: holds ``pom.xml`` and, below ``src/main``, the sources and resources, if there are any.
        properties: values for properties of the pom, such as ``pulsar_version="4.2.4"`` for ``pulsar.version``.
    """
    for tool in ("java", "javac", "mvn"):
        need(tool)
    named = {name.replace("_", "."): value for name, value in properties.items()}
    libraries = _libraries(folder / "pom.xml", named)
    sources = sorted(path for path in (folder / "src" / "main").rglob("*") if path.is_file())
    key = _hash([repr(sorted(named.items())).encode(), libraries.encode(), *(path.read_bytes() for path in sources)])
    classes = cache_folder("maven") / f"{folder.name}-{key}"
    if not classes.exists():
        _compile(sources, libraries, classes, folder / "src" / "main" / "resources")
    return JavaProject(os.pathsep.join([str(classes), libraries]))


def _hash(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def _libraries(pom: Path, properties: dict[str, str]) -> str:
    """Return the class path of a project's libraries."""
    key = _hash([pom.read_bytes(), repr(sorted(properties.items())).encode()])
    kept = cache_folder("maven") / f"{pom.parent.name}-{key}.classpath"
    if kept.exists():
        found = kept.read_text()
        if all(Path(part).exists() for part in found.split(os.pathsep)):
            return found
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        shutil.copy(pom, folder)
        output = Path(folder) / "classpath.txt"
        command = [need("mvn"), "-B", "-q", *(f"-D{name}={value}" for name, value in properties.items())]
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={output}"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=RESOLVE_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"Maven did not bring the libraries of {pom.parent.name} in {RESOLVE_SECONDS_MAX} s")
        if done.returncode != 0:
            pytest.skip(f"Maven cannot bring the libraries of {pom.parent.name}: {done.stdout.strip()[:400]}")
        output.replace(kept)
    return kept.read_text()


def _compile(sources: list[Path], libraries: str, classes: Path, resources: Path) -> None:
    """Compile into a folder that has its name only once it is complete."""
    begun = Path(tempfile.mkdtemp(dir=classes.parent))
    try:
        if java := [str(path) for path in sources if path.suffix == ".java"]:
            done = subprocess.run(
                [need("javac"), "-nowarn", "-proc:none", "-parameters", "-d", str(begun), "-cp", libraries, *java],
                capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"the sources do not compile:\n{done.stderr[-4_000:]}"
        if resources.exists():
            shutil.copytree(resources, begun, dirs_exist_ok=True)
        if not classes.exists():  # another run may have been faster
            begun.rename(classes)
    finally:
        shutil.rmtree(begun, ignore_errors=True)
