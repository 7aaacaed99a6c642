"""The static files of the chat page, and its security headers."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

ROOT = "/chat"
FILES = {
    "chat.css": "text/css",
    "icon.svg": "image/svg+xml",
    "app.js": "text/javascript",
    "api.js": "text/javascript",
    "conversations.js": "text/javascript",
    "files.js": "text/javascript",
    "composer.js": "text/javascript",
    "log.js": "text/javascript",
    "outbox.js": "text/javascript",
    "render.js": "text/javascript",
}

HEADERS = {
    # Only resources of this server, no inline scripts or styles, and no text that becomes HTML or script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Page:
    """Serves the static files. Reads each file once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes of ``/chat`` and its files. They need no sign-in, because they contain no data."""
        return [
            Route("/", _redirect_to_chat, methods=["GET"], include_in_schema=False),
            self._route(ROOT, "index.html", "text/html"),
            *(self._route(f"{ROOT}/static/{name}", name, media_type) for name, media_type in FILES.items()),
        ]

    def _route(self, path: str, name: str, media_type: str) -> BaseRoute:
        async def serve(request: Request) -> Response:
            if name not in self._files:
                self._files[name] = await asyncio.to_thread(_read, name)
            content, tag = self._files[name]
            headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(content, headers=headers, media_type=media_type)

        return Route(path, serve, methods=["GET"], include_in_schema=False)


async def _redirect_to_chat(_request: Request) -> Response:
    return RedirectResponse(ROOT.removeprefix("/"), headers=HEADERS)


def _read(name: str) -> tuple[bytes, str]:
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'
