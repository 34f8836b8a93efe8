"""Notifications in a Django application. docs/TUTORIAL.md has the commands and explains each part."""

import json
import os
import sys
from pathlib import Path

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path

from ray_notifications import SyncPublisher, TokenSigner

ENGINE = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
signer = TokenSigner(os.environ["ENGINE_JWT_SECRET"])
RAY_NOTIFICATIONS = {"signer": signer, "user": lambda request: request.session.get("user")}
PHOTO = {"kind": "photo", "id": "7", "title": "Night train"}
settings.configure(
    DEBUG=True, SECRET_KEY="of the sample", ROOT_URLCONF=__name__, SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
                "ray_notifications.django.token_middleware"],
    RAY_NOTIFICATIONS=RAY_NOTIFICATIONS,
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [Path(__file__).parent]}],
)  # fmt: skip


publisher = SyncPublisher(ENGINE, signer.publisher("photos"), retry_for_s=5)


def sign_in(request: HttpRequest) -> HttpResponse:
    request.session["user"] = request.GET["user"]  # your sign-in goes here: this one asks for no password
    return redirect("/")


def page(request: HttpRequest) -> HttpResponse:
    return render(request, "photos.html", {"user": request.session["user"], "engine": ENGINE})


def comment(request: HttpRequest) -> HttpResponse:
    form, user = json.loads(request.body), request.session["user"]
    data = {"title": f"{user} commented on your photo", "body": form["text"]}
    publisher.publish(user=form["owner"], type="photo.commented", actor=user, target=PHOTO, data=data)
    publisher.event(type="comment.created", user=form["owner"], actor=user, target=PHOTO, data={"text": form["text"]})
    return HttpResponse(status=204)


urlpatterns = [path("sign-in", sign_in), path("", page), path("comments", comment)]
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
