"""The files of the page: each at its path, of its type, with the headers it needs, and sent again only when it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.http import static_files

ROUTES = {route.path: route for route in static_files.routes()}
FOLDER = Path(static_files.__file__).parent / "static"


async def get(route: Route, **headers: str) -> Response:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await route.endpoint(Request({"type": "http", "method": "GET", "headers": raw}))  # type: ignore[no-any-return]


async def test_every_file_is_served_byte_for_byte_at_its_path_and_the_pages_at_their_names() -> None:
    files = {f"/{file.relative_to(FOLDER).as_posix()}": file.read_bytes() for file in FOLDER.rglob("*") if file.is_file()}
    files |= {"/": files.pop("/index.html"), "/admin": files.pop("/admin.html")}
    assert {path: (await get(route)).body for path, route in ROUTES.items()} == files


@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_no_file_is_guessed_at_framed_or_kept_beyond_an_upgrade(path: str) -> None:
    headers = (await get(ROUTES[path])).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(("path", "images"), [("/", "'self' http: https:"), ("/admin", "'self'")])
async def test_a_page_runs_only_what_the_engine_serves_and_nobody_frames_it(path: str, images: str) -> None:
    page = await get(ROUTES[path])
    policy = dict(directive.split(" ", 1) for directive in page.headers["content-security-policy"].split("; "))
    assert page.headers["content-type"].startswith("text/html")
    assert policy.pop("img-src") == images
    assert {policy.pop(name) for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy.keys() == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert set(policy.values()) == {"'none'"}
    assert b"Content-Security-Policy" not in page.body
    assert "access-control-allow-origin" not in page.headers


async def test_pages_of_other_origins_import_the_client_and_read_no_other_kind_of_file() -> None:
    for path, route in ROUTES.items():
        headers = (await get(route)).headers
        script = path.endswith(".js")
        assert (headers.get("access-control-allow-origin") == "*") is script, path
        assert headers["content-type"].startswith("text/javascript") is script, path


@pytest.mark.parametrize("seen", ["{}", "W/{}", '"other", {}', '"other",W/{}'])
async def test_a_file_that_was_seen_is_not_sent_again(seen: str) -> None:
    route = ROUTES["/client.js"]
    etag = (await get(route)).headers["etag"]
    again = await get(route, if_none_match=seen.format(etag))
    assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["cache-control"] == "no-cache"


async def test_a_file_of_which_another_version_was_seen_is_sent_again() -> None:
    for seen in ("", '"other"', (await get(ROUTES["/"])).headers["etag"]):
        assert (await get(ROUTES["/client.js"], if_none_match=seen)).status_code == 200


def test_two_files_of_one_name_and_hidden_ones_are_told_apart(tmp_path: Path) -> None:
    for name in (".hidden", "_private.js", "a.js", "sub/a.js", "sub/index.html"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    assert sorted(path for path, _ in static_files._files(tmp_path, "")) == ["/a.js", "/sub/a.js", "/sub/index.html"]
