"""What a user wants, what would become of a notification, and what became of one: questions of an application, answered or repeated."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from engine.client.credentials import Credentials, EngineUrl
from engine.client.http_connection import HttpConnection
from engine.client.publish_results import RETRIED, problem_of, retry_after_s, retry_delay_s
from engine.errors import Forbidden, Refused, Unauthorized, Unreachable

_REFUSALS: Final = {401: Unauthorized, 403: Forbidden}


class UserSettings:
    """Asks one engine. Every question may be repeated: none changes more the second time.

    Args:
        timeout_s: for one try.
        retry_for_s: how long an unreachable or overloaded engine is tried.
    """

    def __init__(self, http: HttpConnection, credentials: Credentials, address: EngineUrl, timeout_s: float, retry_for_s: float) -> None:
        self._http = http
        self._credentials = credentials
        self._address = address
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s

    async def explain(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One result for each user of the item."""
        answer = await self._ask("POST", "/v1/explain", item)
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def profile(self, user: str) -> dict[str, Any]:
        """What a user wants."""
        return await self._ask("GET", f"/v1/users/{_part(user)}/profile")

    async def set_profile(self, user: str, profile: Mapping[str, Any] | None) -> dict[str, Any]:
        """Keep it, None to forget it; returns it as kept."""
        path = f"/v1/users/{_part(user)}/profile"
        if profile is None:
            await self._ask("DELETE", path)
            return await self._ask("GET", path)
        return await self._ask("PUT", path, profile)

    async def timeline(self, user: str, id: str) -> dict[str, Any] | None:
        """What is still known of a message; None when nothing is."""
        try:
            return await self._ask("GET", f"/v1/users/{_part(user)}/messages/{_part(id)}")
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON object that is answered, {} for none.

        Raises:
            Refused: a field is not valid; or Unauthorized, Forbidden: the token.
            Unreachable: no engine answered within `retry_for_s`.
        """
        give_up = time.monotonic() + self._retry_for_s
        attempt, renewed = 0, False
        while True:
            headers = {"Authorization": f"Bearer {await self._credentials.get(fresh=renewed)}", "Content-Type": "application/json"}
            content = b"" if body is None else msgspec.json.encode(body)
            wait_s = None
            try:
                answer = await self._http.request(method, path, headers, content, timeout_s=self._timeout_s)
            except OSError as error:  # ConnectionError and TimeoutError are OSErrors
                reason = str(error) or f"no answer within {self._timeout_s:g} s"
            else:
                if answer.status in (200, 204):
                    return msgspec.json.decode(answer.body, type=dict[str, Any]) if answer.body else {}
                if answer.status == 401 and self._credentials.renewable and not renewed:
                    renewed = True
                    continue
                if answer.status not in RETRIED:
                    raise _REFUSALS.get(answer.status, Refused)(problem_of(answer).detail or "the engine gave no reason", answer.status)
                reason, wait_s = f"{answer.status} {problem_of(answer).detail}", retry_after_s(answer)
            delay_s = retry_delay_s(attempt, wait_s, random.random())
            attempt += 1
            if time.monotonic() + delay_s > give_up:
                raise Unreachable(f"{self._address.http} did not answer within {self._retry_for_s:g} s: {reason}")
            await asyncio.sleep(delay_s)


def _part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
