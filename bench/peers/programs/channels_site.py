"""Django Channels with Celery: settings, consumer, ASGI application, task and publisher, each as its documentation shows it.

A notification is a Celery task that calls `async_to_sync(channel_layer.group_send)` on a `channels_redis` layer; the consumer of the
user's group writes it to the WebSocket. No database: nothing is kept. REDIS_URL says where Redis is.

    uvicorn channels_site:application
    celery -A channels_site:celery_app worker
    python channels_site.py        says that it is ready, reads lines of [[group, payload], ...], answers each with a line
"""

import json
import os
import sys

import django
from asgiref.sync import async_to_sync
from celery import Celery
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.layers import get_channel_layer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.urls import path

REDIS_URL = os.environ["REDIS_URL"]

settings.configure(
    SECRET_KEY="bench",
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["channels"],
    USE_TZ=True,
    CHANNEL_LAYERS={
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            # With the defaults of redis-py 8 (5 s, 100 connections) idle consumers die of a timeout, and a connect storm gets HTTP 500.
            "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None, "max_connections": 100_000}]},
        }
    },
)
django.setup()

celery_app = Celery("site", broker=REDIS_URL)
celery_app.conf.update(task_ignore_result=True)


@celery_app.task(name="notify")
def notify(group: str, payload: dict) -> None:
    async_to_sync(get_channel_layer().group_send)(group, {"type": "notify", "payload": payload})


class Notifications(AsyncJsonWebsocketConsumer):
    acknowledged = 0

    async def connect(self) -> None:
        self.group = "user-" + self.scope["url_route"]["kwargs"]["user"]
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.channel_layer.group_add("all", self.channel_name)
        await self.accept()
        await self.send_json({"hello": self.group})

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(self.group, self.channel_name)
        await self.channel_layer.group_discard("all", self.channel_name)

    async def receive_json(self, content: dict) -> None:
        if "ack" in content:
            self.acknowledged = content["ack"]

    async def notify(self, event: dict) -> None:
        await self.send_json(event["payload"])


application = ProtocolTypeRouter({"websocket": URLRouter([path("ws/<str:user>", Notifications.as_asgi())])})

if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        with celery_app.producer_pool.acquire(block=True) as producer:
            for group, payload in json.loads(line):
                notify.apply_async((group, payload), producer=producer)
        print(flush=True)
