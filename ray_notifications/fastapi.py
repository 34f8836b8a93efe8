"""The token of the signed-in user, from a FastAPI application.

    signer = TokenSigner(SECRET)
    app.include_router(token_router(signer, signed_in))

A page gets it with `getToken: () => fetch("/notifications/token").then((answer) => answer.text())`.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from ray_notifications import TokenSigner


def token_router(signer: TokenSigner, user: Callable[..., Any], path: str = "/notifications/token") -> APIRouter:
    """A router with one endpoint, `GET path`: a token of the signed-in user, as text, which nothing may cache.

    Args:
        signer: has the engine's secret.
        user: a dependency of your own that returns the name of the signed-in user, and raises where there is none.
        path: of the endpoint.

    Returns:
        What `app.include_router` takes.
    """
    router = APIRouter()

    async def token(name: str = Depends(user)) -> PlainTextResponse:
        return PlainTextResponse(signer.token(name), headers={"Cache-Control": "no-store"})

    router.add_api_route(path, token, methods=["GET"], response_class=PlainTextResponse, summary="A token for notifications")
    return router
