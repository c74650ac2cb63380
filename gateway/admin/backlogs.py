"""Pulsar's administrative REST interface for the subscriptions of a whole namespace or bundle, and for the hashes that
place topics in a bundle."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from heliograph.base.errors import ConflictError, NotFoundError, TopicBusyError
from heliograph.gateway.admin.routes import NAMESPACE, NO_CONTENT, NamespaceInUrl, full_name, hash_of, in_bundle
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.topics import SubscriptionInUrl, topic_names_in
from heliograph.gateway.shapes.url_segments import decoded

BUNDLE = f"{NAMESPACE}/{{bundle}}"
CLEAR, REMOVE = "Acknowledge everything", "Delete subscriptions"

router = APIRouter(
    tags=["namespaces"],
    responses={
        404: {"model": ErrorBody, "description": "No such namespace or bundle"},
        412: {"model": ErrorBody, "description": "A subscription has consumers"},
    },
)


@router.post(f"{NAMESPACE}/clearBacklog", **NO_CONTENT, summary=CLEAR)
async def clear(services: ServicesDep, name: NamespaceInUrl) -> None:
    """Acknowledge everything in all persistent topics of the namespace, for all durable subscriptions."""
    await services.admin.cursors.clear_namespace(name)


@router.post(f"{NAMESPACE}/clearBacklog/{{subscription}}", **NO_CONTENT, summary=CLEAR)
async def clear_subscription(services: ServicesDep, name: NamespaceInUrl, subscription: SubscriptionInUrl) -> None:
    """Acknowledge everything in all persistent topics of the namespace, for subscriptions of one name."""
    await services.admin.cursors.clear_namespace(name, None, subscription)


@router.post(f"{BUNDLE}/clearBacklog", **NO_CONTENT, summary=CLEAR)
async def clear_bundle(services: ServicesDep, name: NamespaceInUrl, bundle: str) -> None:
    """Acknowledge everything in the persistent topics of one bundle."""
    await services.admin.cursors.clear_namespace(name, decoded(bundle))


@router.post(f"{BUNDLE}/clearBacklog/{{subscription}}", **NO_CONTENT, summary=CLEAR)
async def clear_bundle_subscription(
    services: ServicesDep, name: NamespaceInUrl, bundle: str, subscription: SubscriptionInUrl
) -> None:
    """Acknowledge everything in the persistent topics of one bundle, for subscriptions of one name."""
    await services.admin.cursors.clear_namespace(name, decoded(bundle), subscription)


@router.post(f"{NAMESPACE}/unsubscribe/{{subscription}}", **NO_CONTENT, summary=REMOVE)
async def unsubscribe(services: ServicesDep, name: NamespaceInUrl, subscription: SubscriptionInUrl) -> None:
    """Delete the subscriptions of one name from all persistent topics of the namespace; 412 while one has consumers."""
    await _unsubscribe(services, name, subscription, None)


@router.post(f"{BUNDLE}/unsubscribe/{{subscription}}", **NO_CONTENT, summary=REMOVE)
async def unsubscribe_bundle(
    services: ServicesDep, name: NamespaceInUrl, bundle: str, subscription: SubscriptionInUrl
) -> None:
    """Delete the subscriptions of one name from the persistent topics of one bundle; 412 while one has consumers."""
    await _unsubscribe(services, name, subscription, decoded(bundle))


@router.get(f"{BUNDLE}/topicHashPositions", summary="Hashes of a bundle's topics")
async def hash_positions(
    services: ServicesDep,
    tenant: str,
    namespace: str,
    bundle: str,
    topics: Annotated[list[str] | None, Query(description="Only these")] = None,
) -> dict[str, Any]:
    """Return `{"namespace", "bundle", "topicHashPositions": {topic: hash}}`."""
    name, is_in_bundle = full_name(tenant, namespace), in_bundle(bundle)
    if decoded(bundle) not in [one["name"] for one in (await services.admin.brokers.bundles(name))["bundles"]]:
        raise NotFoundError(f"{name} has no bundle {decoded(bundle)}", field="bundle")
    wanted = {text for given in topics or () for text in given.split(",") if text}
    found = await topic_names_in(services.admin, tenant, namespace, wanted=is_in_bundle)
    positions = {topic: hash_of(topic) for topic in found if not wanted or topic in wanted}
    return {"namespace": name, "bundle": decoded(bundle), "topicHashPositions": positions}


async def _unsubscribe(services: Services, namespace: str, subscription: str, bundle: str | None) -> None:
    try:
        await services.admin.cursors.unsubscribe_namespace(namespace, subscription, bundle)
    except ConflictError as error:  # 412 here as Pulsar has it
        raise TopicBusyError(str(error), field="subscription") from error
