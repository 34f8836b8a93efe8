"""The token of the signed-in user, from a Django application.

    MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware", "ray_notifications.django.token_middleware"]
    RAY_NOTIFICATIONS = {"signer": TokenSigner(SECRET)}

A page gets it with `getToken: () => fetch("/notifications/token").then((answer) => answer.text())`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from ray_notifications import TokenSigner


def signed_in_user(request: HttpRequest) -> str | None:
    """The name of the user whom `django.contrib.auth` has signed in; None for nobody."""
    user = request.user
    return user.get_username() if user.is_authenticated else None


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django ships no types
def token_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Answers `GET /notifications/token` with a token of the signed-in user, as text; 401 for nobody. Other requests pass.

    The setting `RAY_NOTIFICATIONS` is a dictionary:
        signer: the `TokenSigner`. Needed.
        path: of the endpoint, in place of `/notifications/token`.
        user: a function that takes the request and returns the user's name or None, in place of the user of `django.contrib.auth`.
    """
    given = dict(getattr(settings, "RAY_NOTIFICATIONS", {}))
    signer, path, user = given.pop("signer", None), given.pop("path", "/notifications/token"), given.pop("user", signed_in_user)
    if not isinstance(signer, TokenSigner):
        raise ImproperlyConfigured("RAY_NOTIFICATIONS: `signer` is needed, a ray_notifications.TokenSigner")
    if given:
        raise ImproperlyConfigured(f"RAY_NOTIFICATIONS: unknown {min(given)!r}; allowed are signer, path and user")

    def answer(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        name = user(request)
        if not name:
            return HttpResponse("sign in first", "text/plain", 401)
        return HttpResponse(signer.token(name), "text/plain", headers={"Cache-Control": "no-store"})

    async def middleware(request: HttpRequest) -> Any:
        return await (sync_to_async(answer)(request) if request.path == path else get_response(request))

    def sync_middleware(request: HttpRequest) -> Any:
        return answer(request) if request.path == path else get_response(request)

    return middleware if iscoroutinefunction(get_response) else sync_middleware
