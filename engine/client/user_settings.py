"""Profiles, preferences, erasure, explanations, timelines: what a user wants, and what would happen or happened to a notification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from engine.client.publish_results import body_of
from engine.client.retried_requests import RetriedRequests
from engine.client.user_preferences import UserPreferences, change_preferences, fetch_preferences, make_unsubscribe_links
from engine.errors import Refused


class UserSettings:
    """Requests about users and their messages. All of them are idempotent and retried."""

    def __init__(self, requests: RetriedRequests) -> None:
        self._requests = requests

    async def explain(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One result for each user of the item."""
        answer = await self._request("POST", "/v1/explain", item)
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def profile(self, user: str) -> dict[str, Any]:
        """The profile of a user: time zone, quiet hours, mutes, digest, level."""
        return await self._request("GET", f"/v1/users/{_part(user)}/profile")

    async def set_profile(self, user: str, profile: Mapping[str, Any] | None) -> dict[str, Any]:
        """Store a profile, delete it with None; returns it as stored."""
        path = f"/v1/users/{_part(user)}/profile"
        if profile is None:
            await self._request("DELETE", path)
            return await self._request("GET", path)
        return await self._request("PUT", path, profile)

    async def preferences(self, user: str) -> UserPreferences:
        """What a user has chosen, and may choose."""
        return await fetch_preferences(self._requests, user)

    async def set_preferences(self, user: str, changes: Mapping[str, Any]) -> UserPreferences:
        """Change what is named; durable on return."""
        return await change_preferences(self._requests, changes, user)

    async def unsubscribe_links(self, category: str, users: list[str]) -> dict[str, str]:
        """For each user the path of a link that turns the category off, without login."""
        return await make_unsubscribe_links(self._requests, category, users)

    async def erase(self, user: str) -> None:
        """Erase a user; returns when nothing is left. Needs the scope `admin`."""
        await self._request("DELETE", f"/v1/users/{_part(user)}")

    async def timeline(self, user: str, id: str) -> dict[str, Any] | None:
        """State and history of a message; None when the engine has neither."""
        try:
            return await self._request("GET", f"/v1/users/{_part(user)}/messages/{_part(id)}")
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON object in the answer, {} when it has no body.

        Raises:
            Refused: a field is not valid; Unauthorized, Forbidden: the token.
            Unreachable: no engine answered within `retry_for_s`.
        """
        answer = await self._requests.send(method, path, b"" if body is None else msgspec.json.encode(body))
        found = body_of(answer, 200, 204)
        return msgspec.json.decode(found, type=dict[str, Any]) if found else {}


def _part(name: str) -> str:
    """A name as a segment of a path."""
    return quote(name, safe="")
