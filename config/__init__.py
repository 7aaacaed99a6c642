"""The settings and their loader. This package imports no other package of the project."""

from config.load import ConfigurationError, load
from config.settings import Settings

__all__ = ["ConfigurationError", "Settings", "load"]
