"""An environment of its own with nothing of Heliograph in it but an installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

import hatchling.build

ROOT = Path(__file__).resolve().parents[3]
COMMAND_SECONDS_MAX = 300


def build_wheel(source: Path, target: Path) -> Path:
    """Build a wheel of the sources in ``source`` into ``target``, as pip does, and return its path."""
    return target / _build("build_wheel", source, target)


def build_wheel_from_sdist(source: Path, target: Path) -> Path:
    """Build an sdist of ``source``, unpack it, and build a wheel of what it held."""
    sdist = target / _build("build_sdist", source, target)
    with tarfile.open(sdist) as archive:
        archive.extractall(target / "unpacked", filter="data")
    (unpacked,) = (target / "unpacked").iterdir()
    return build_wheel(unpacked, target)


def build_editable(source: Path, target: Path) -> Path:
    """Build what ``pip install -e`` installs."""
    return target / _build("build_editable", source, target)


def _build(hook: str, source: Path, target: Path) -> str:
    program = f"import sys, hatchling.build; print(hatchling.build.{hook}(sys.argv[1]))"
    assert hasattr(hatchling.build, hook)
    return _run([sys.executable, "-c", program, str(target)], source, dict(os.environ)).splitlines()[-1]


def _run(command: list[str], directory: Path, environment: dict[str, str], code: int = 0) -> str:
    ran = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
    )
    assert ran.returncode == code, f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr if code else ran.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment: the wheel is installed in it, the dependencies are those of this test's environment.

    A ``.pth`` file names the directory of the dependencies. Python ignores ``.pth`` files of such a directory, so the
    editable install that the tests run on is not seen.
    """

    directory: Path

    @classmethod
    def create(cls, directory: Path, wheel: Path) -> Environment:
        venv.create(directory, with_pip=False, symlinks=True)
        made = cls(directory)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(made.python),
            "install",
            "--no-deps",
            "--no-index",
            "--quiet",
        ]
        _run([*pip, "--disable-pip-version-check", str(wheel)], directory, made.variables())
        (made.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return made

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def packages(self) -> Path:
        (found,) = (self.directory / "lib").glob("python*/site-packages")
        return found

    def variables(self, settings: dict[str, str] | None = None) -> dict[str, str]:
        """The environment variables of a user who has activated the environment."""
        dropped = ("HELIOGRAPH_", "RAY_", "PYTHON", "VIRTUAL_ENV", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        path = f"{self.directory / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return {**kept, "PATH": path, "VIRTUAL_ENV": str(self.directory), **(settings or {})}

    def run(self, command: list[str], directory: Path, settings: dict[str, str] | None = None, code: int = 0) -> str:
        """Run a command as the user would in ``directory`` and return what it printed."""
        variables = self.variables(settings)
        found = shutil.which(command[0], path=variables["PATH"])
        assert found is not None, f"{command[0]} is not in the environment"
        return _run([found, *command[1:]], directory, variables, code)
