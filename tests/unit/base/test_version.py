"""What says which extra installs a missing package."""

from __future__ import annotations

import pytest

from heliograph.base.errors import ResourceError
from heliograph.base.version import extra_required, install_advice
from heliograph.cli.output import Output


@pytest.mark.parametrize(("name", "extra"), [("ray.exceptions", "cluster"), ("kazoo", "cluster"), ("pyarrow", "spark")])
def test_the_extra_is_named(name: str, extra: str) -> None:
    with (
        pytest.raises(ResourceError, match=rf"needs {name.partition('.')[0]}: pip install '.*\[{extra}\]'"),
        extra_required(),
    ):
        raise ModuleNotFoundError("gone", name=name)


def test_other_packages_are_not_ours_to_advise_on() -> None:
    assert install_advice(ImportError("no name")) == ""
    with pytest.raises(ModuleNotFoundError, match="gone"), extra_required():
        raise ModuleNotFoundError("gone", name="scipy")


def test_a_command_says_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).error(ModuleNotFoundError("No module named 'ray'", name="ray"))
    assert capsys.readouterr().err == "error: this needs ray: pip install 'heliograph-ray[cluster]'\n"
