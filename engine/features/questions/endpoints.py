"""`/v1/answers` and `/v1/questions`: answer a question, get its answer, and withdraw it."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.routing import audience_key, mailbox_key
from engine.features.questions import description
from engine.features.questions.answer_frames import AnswerFrames
from engine.features.questions.questions import Given, Questions, shown
from engine.features.questions.store import QuestionStore
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route, without_head
from engine.http.problems import bad_request
from engine.store.lua import Replicas


class _AnswerBody(Given, forbid_unknown_fields=True, gc=False):
    """The body of `POST /v1/answers/{message}`."""


_bodies: Final = msgspec.json.Decoder(_AnswerBody)


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store = QuestionStore(ports.stores, ports.config.questions_per_user_max, Replicas.wanted(ports.config))
    return feature_of(ports.config, ports.gateway, store)


def feature_of(config: Config, gateway: Gateway, store: QuestionStore) -> EdgeFeature:
    """The feature, with this storage."""
    questions = Questions(config, gateway, store)
    gateway.shard_client.open_questions = questions.open
    gateway.feature_frames.register("answer", AnswerFrames(questions).answer)
    gateway.kept_of_user["questions"] = questions.kept_rows
    gateway.erase_of_user["questions"] = store.erase
    return EdgeFeature("questions", lambda access: table(access, questions), questions.run)


def table(access: Access, questions: Questions) -> EndpointTable:
    """The endpoints."""

    async def answer(request: Request) -> Response:
        """`POST /v1/answers/{message}?user=&device=`."""
        principal, key, _ = access.subscriber(request)
        given = decode_body(_bodies, await access.body(request), _AnswerBody)
        return json_answer(shown(await questions.answer(principal, key, request.path_params["message"], access.device(request), given)))

    def key_of_topic(request: Request) -> str | None:
        """The key of the topic that the query names: what members answer is for who asks."""
        topic = request.query_params.get("topic", "")
        return audience_key(access.authenticate(request, "publish").tenant, topic) if topic else None

    async def look(request: Request) -> Response:
        """`GET /v1/questions/{question}?user=&topic=&wait=`: without `wait` it does not wait."""
        key = key_of_topic(request) or access.subscriber(request)[1]
        wait_s = access.wait_s(request) if "wait" in request.query_params else 0.0
        found = await questions.look(key, request.path_params["question"], wait_s)
        access.confirm(request)
        return json_answer(found)

    async def withdraw(request: Request) -> Response:
        """`DELETE /v1/questions/{question}?user=&topic=`."""
        if (key := key_of_topic(request)) is None:
            principal = access.authenticate(request, "publish")
            user = access.queried_user(request)
            if user is None:
                raise bad_request("the query parameter `user` or `topic` is needed: who was asked")
            key = mailbox_key(principal.tenant, user)
        return json_answer(await questions.withdraw(key, request.path_params["question"]))

    routes = [
        route("/v1/answers/{message:segment}", POST=answer),
        without_head(route("/v1/questions/{question:segment}", GET=look, DELETE=withdraw)),
    ]
    return EndpointTable(routes, description)
