"""Maven projects: their libraries are fetched once, their sources are compiled once, both outside of the repository.

The class path is kept by the hash of ``pom.xml`` and the properties, the classes by that of the sources besides.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.clients.support.cached import cached, compile_sources, digest, fetch
from tests.clients.support.tools import need

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
    resources = folder / "src" / "main" / "resources"

    def make(classes: Path) -> None:
        classes.mkdir()
        if java := [str(path) for path in sources if path.suffix == ".java"]:
            options = ["-nowarn", "-proc:none", "-parameters", "-d", str(classes), "-cp", libraries]
            compile_sources([need("javac"), *options, *java], seconds=COMPILE_SECONDS_MAX)
        if resources.exists():
            shutil.copytree(resources, classes, dirs_exist_ok=True)

    key = digest([repr(sorted(named.items())).encode(), libraries.encode(), *(path.read_bytes() for path in sources)])
    return JavaProject(os.pathsep.join([str(cached("maven", f"{folder.name}-{key}", make)), libraries]))


def _libraries(pom: Path, properties: dict[str, str]) -> str:
    """Return the class path of a project's libraries."""

    def resolve(output: Path) -> None:
        shutil.copy(pom, output.parent)
        command = [need("mvn"), "-B", "-q", *(f"-D{name}={value}" for name, value in properties.items())]
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={output}"]
        what = f"the libraries of {pom.parent.name}"
        fetch("Maven Central", what, command, seconds=RESOLVE_SECONDS_MAX, cwd=output.parent)

    key = digest([pom.read_bytes(), repr(sorted(properties.items())).encode()])
    name = f"{pom.parent.name}-{key}.classpath"
    kept = cached("maven", name, resolve)
    if not all(Path(part).exists() for part in kept.read_text().split(os.pathsep)):
        kept.unlink()  # Maven's own cache was emptied
        kept = cached("maven", name, resolve)
    return kept.read_text()
