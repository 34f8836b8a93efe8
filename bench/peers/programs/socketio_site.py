"""python-socketio with acknowledgement callbacks and a Redis manager, as its documentation shows it. REDIS_URL says where Redis is.

    uvicorn socketio_site:app

A client joins the room of its user and the room of all. `POST /publish` takes [[room, payload], ...] and emits each with a callback.
"""

import os

import socketio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

sio = socketio.AsyncServer(async_mode="asgi", client_manager=socketio.AsyncRedisManager(os.environ["REDIS_URL"]))
acknowledged = 0


def on_ack(*_answers: object) -> None:
    global acknowledged  # noqa: PLW0603 - as small as a counter can be
    acknowledged += 1


@sio.event
async def connect(sid: str, _environ: dict, auth: dict) -> None:
    await sio.enter_room(sid, auth["user"])
    await sio.enter_room(sid, "all")


async def publish(request: Request) -> JSONResponse:
    for room, payload in await request.json():
        await sio.emit("notify", payload, room=room, callback=on_ack)
    return JSONResponse({"acknowledged": acknowledged})


app = socketio.ASGIApp(sio, other_asgi_app=Starlette(routes=[Route("/publish", publish, methods=["POST"])]))
