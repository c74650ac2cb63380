"""The public names of the error tree: ``from heliograph.errors import NotFoundError``."""

from heliograph.base.errors import *  # noqa: F403
from heliograph.base.errors import __all__ as __all__
