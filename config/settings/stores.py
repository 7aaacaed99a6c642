"""Where things are kept, and how old what is found there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import MOST_DAYS, PositiveSeconds, WebUrl, url_with_scheme


class StoreSettings(BaseModel):
    """Where things are kept, and how old what is found there may be."""

    data_dir: Path = Path("./data")
    """Everything that is kept on disk."""
    redis_url: Annotated[
        SecretStr | None, url_with_scheme("redis", "rediss", "redis+cluster", "redis+sentinel", "unix")
    ] = None
    """A Redis server: redis://, rediss://, unix://, redis+cluster://host:port,… or
    redis+sentinel://host:port,…/service. Unset: an embedded server under DATA_DIR."""
    redis_timeout_seconds: PositiveSeconds = 5.0
    """One call to Redis."""
    qdrant_url: WebUrl | None = None
    """A Qdrant server or cluster. Unset: embedded under DATA_DIR."""
    qdrant_api_key: SecretStr | None = None
    """For QDRANT_URL."""
    qdrant_timeout_seconds: PositiveSeconds = 5.0
    """One call to Qdrant."""
    index_stale_seconds: PositiveSeconds = 10.0
    """How long a changed document may wait for the index before prompts say that what was found may be out of date."""
    index_keep_former_days: Annotated[float, Field(ge=0, le=MOST_DAYS)] = 7.0
    """How many days the index of a former EMBEDDING_MODEL is kept after the last workspace has left it, so that going
    back is cheap. 0: it is dropped at once."""
