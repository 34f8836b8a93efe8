"""Actions on an edge: the dispatcher, and the callers of each kind of target."""

from __future__ import annotations

from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.core.model.action import ActorTarget, ServeTarget, Target, WebhookTarget
from engine.errors import ActionFailed
from engine.features.actions.dispatcher import Dispatcher
from engine.features.actions.figures import METRICS
from engine.features.actions.ray_targets import RayTargets
from engine.features.actions.serve_targets import ServeTargets
from engine.features.actions.store import ActionStreams, QueuedAction
from engine.features.actions.webhooks import Webhooks


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    gateway, config = ports.gateway, ports.config
    webhooks, actors, deployments = Webhooks(config, gateway.wall_ms), RayTargets(config.namespace), ServeTargets()

    async def call(target: Target, action: QueuedAction) -> None:
        if isinstance(target, ActorTarget):
            await actors.call(target, action)
        elif isinstance(target, ServeTarget):
            await deployments.call(target, action)
        elif isinstance(target, WebhookTarget):
            await webhooks.call(target, action)
        elif (channel := gateway.channel_callers.get(target.channel)) is not None:
            await channel(target, action)
        else:
            raise ActionFailed(f"there is no channel {target.channel}", final=True)

    streams = ActionStreams(ports.redis, config, ports.name)
    dispatcher = Dispatcher(config, streams, call, gateway.clock, gateway.wall_ms, gateway.shard_client.outcomes, gateway.record_call)
    gateway.metrics.degraded["actions"] = dispatcher.reason
    gateway.metrics.of_features.append(dispatcher.families)
    return EdgeFeature("actions", run=dispatcher.run, metrics=METRICS)
