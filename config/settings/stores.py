"""Settings of the stores, and when the index counts as stale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import MAX_DAYS, PositiveSeconds, WebUrl, url_validator


class StoreSettings(BaseModel):
    """Settings of the stores, and when the index counts as stale."""

    data_dir: Path = Path("./data")
    """Everything that is kept on disk."""
    redis_url: Annotated[
        SecretStr | None, url_validator("redis", "rediss", "redis+cluster", "redis+sentinel", "unix")
    ] = None
    """A Redis server: redis://, rediss://, unix://, redis+cluster://host:port,… or
    redis+sentinel://host:port,…/service. Unset: an embedded server under DATA_DIR."""
    redis_timeout_seconds: PositiveSeconds = 5.0
    """Time limit of one call to Redis."""
    qdrant_url: WebUrl | None = None
    """A Qdrant server or cluster. Unset: embedded under DATA_DIR."""
    qdrant_api_key: SecretStr | None = None
    """API key for QDRANT_URL."""
    qdrant_timeout_seconds: PositiveSeconds = 5.0
    """Time limit of one call to Qdrant."""
    index_stale_seconds: PositiveSeconds = 10.0
    """If a changed document waits longer than this for the index, prompts say that what was found may be out of
    date."""
    index_keep_former_days: Annotated[float, Field(ge=0, le=MAX_DAYS)] = 7.0
    """After another EMBEDDING_MODEL is set, the old index is kept for this many days, so that going back is cheap. 0:
    it is deleted at once."""
