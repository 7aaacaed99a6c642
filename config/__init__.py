"""Settings, and nothing else: this room imports nothing of ours."""

from config.load import ConfigurationError, load
from config.settings import Settings

__all__ = ["ConfigurationError", "Settings", "load"]
