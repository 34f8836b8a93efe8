"""Notifications in a FastAPI application. docs/TUTORIAL.md has the commands and explains each part."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Body, Cookie, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from ray_notifications import Publisher, TokenSigner
from ray_notifications.fastapi import token_router

ENGINE = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
PHOTO = {"kind": "photo", "id": "7", "title": "Night train"}
User = Annotated[str, Cookie()]  # your sign-in goes here: anybody can set this cookie
Field = Annotated[str, Body()]


signer = TokenSigner(os.environ["ENGINE_JWT_SECRET"])


def signed_in(user: User) -> str:
    return user


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Publisher(ENGINE, signer.publisher("photos"), retry_for_s=5) as app.state.publisher:
        yield


app = FastAPI(lifespan=lifespan)
app.include_router(token_router(signer, signed_in))
templates = Jinja2Templates(Path(__file__).parent)


@app.get("/sign-in", response_class=RedirectResponse)
async def sign_in(user: str, response: Response) -> str:
    response.set_cookie("user", user, httponly=True, samesite="lax")
    return "/"


@app.get("/")
async def page(request: Request, user: User) -> Response:
    return templates.TemplateResponse(request, "photos.html", {"user": user, "engine": ENGINE})


@app.post("/comments", status_code=204)
async def comment(owner: Field, text: Field, user: User) -> None:
    data = {"title": f"{user} commented on your photo", "body": text}
    await app.state.publisher.publish(user=owner, type="photo.commented", actor=user, target=PHOTO, data=data)
    await app.state.publisher.event(type="comment.created", user=owner, actor=user, target=PHOTO, data={"text": text})
