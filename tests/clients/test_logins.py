"""Tokens from the logins of applications in FastAPI and Django. tests/browser/test_tutorial.py has both with a real engine."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import jwt
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import FastAPI, Header, HTTPException

from ray_notifications import TokenSigner
from ray_notifications.django import token_middleware
from ray_notifications.fastapi import token_router

SECRET = "a-secret-for-tests-of-32-characters!"
SIGNER = TokenSigner(SECRET)
PATH = "/notifications/token"

if not settings.configured:
    settings.configure()


def user_of(token: str) -> str:
    return str(jwt.decode(token, SECRET, ["HS256"])["sub"])


async def test_fastapi_gives_a_token_to_its_signed_in_user() -> None:
    def signed_in(session: Annotated[str, Header()] = "") -> str:
        if not session:
            raise HTTPException(401)
        return session

    app = FastAPI()
    app.include_router(token_router(SIGNER, signed_in))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as http:
        assert (await http.get(PATH)).status_code == 401
        answer = await http.get(PATH, headers={"session": "ann"})
    assert user_of(answer.text) == "ann"
    assert answer.headers["cache-control"] == "no-store"


class Person:
    def __init__(self, name: str) -> None:
        self.is_authenticated = bool(name)
        self._name = name

    def get_username(self) -> str:
        return self._name


def asked(name: str, path: str = PATH, method: str = "get") -> HttpRequest:
    request = getattr(RequestFactory(), method)(path)
    request.user = Person(name)
    return request


@override_settings(RAY_NOTIFICATIONS={"signer": SIGNER})
async def test_django_answers_its_signed_in_user_and_passes_other_requests() -> None:
    async def view(_request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")

    blocking, awaited = token_middleware(lambda _: HttpResponse("page")), token_middleware(view)

    for request, status in ((asked(""), 401), (asked("ann", "/page"), 200), (asked("ann", method="post"), 405)):
        answers = blocking(request), await awaited(request)
        assert [answer.status_code for answer in answers] == [status, status]
        assert ("page" in answers[0].content.decode()) == (status == 200)
    for answer in (blocking(asked("ann")), await awaited(asked("ann"))):
        assert user_of(answer.content.decode()) == "ann"
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("given", [{}, {"signer": "secret"}, {"signer": SIGNER, "pth": "/t"}])
def test_a_wrong_setting_of_django_is_named_at_the_start(given: dict[str, Any]) -> None:
    with override_settings(RAY_NOTIFICATIONS=given), pytest.raises(ImproperlyConfigured, match="RAY_NOTIFICATIONS"):
        token_middleware(lambda _: HttpResponse())
