"""The rules of authorisation, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.auth.permissions import Rules
from heliograph.metadata import codec
from heliograph.metadata.model import AuthPolicies, NamespacePolicies
from heliograph.operations.table import Right

TOPIC = "persistent://acme/shop/orders"
PART = f"{TOPIC}-partition-0"
GRANTS = AuthPolicies(
    namespace_auth={"writer": ("produce",), "reader": ("consume",), "app-*": ("produce",), "*-job": ("consume",)},
    destination_auth={TOPIC: {"feeder": ("produce",), "both": ("produce", "consume")}},
)
RULES = Rules(frozenset({"root"}), ("owner",), GRANTS, (PART, TOPIC))
ORDINARY = (Right.PRODUCE, Right.CONSUME, Right.PRODUCE_OR_CONSUME)


def rights(role: str, rules: Rules = RULES) -> set[Right]:
    return {right for right in Right if rules.permit(role, right)}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("root", set(Right)),
        ("owner", {Right.TENANT_ADMIN, *ORDINARY}),
        ("writer", {Right.PRODUCE, Right.PRODUCE_OR_CONSUME}),
        ("reader", {Right.CONSUME, Right.PRODUCE_OR_CONSUME}),
        ("feeder", {Right.PRODUCE, Right.PRODUCE_OR_CONSUME}),
        ("both", set(ORDINARY)),
        ("app-1", {Right.PRODUCE, Right.PRODUCE_OR_CONSUME}),
        ("night-job", {Right.CONSUME, Right.PRODUCE_OR_CONSUME}),
        ("app-1-job", set(ORDINARY)),
        ("my-app-1", set()),
        ("stranger", set()),
        ("", set()),
    ],
)
def test_each_kind_of_role_has_its_rights(role: str, expected: set[Right]) -> None:
    assert rights(role) == expected


def test_a_grant_on_a_topic_holds_for_nothing_else() -> None:
    elsewhere = replace(RULES, topics=("persistent://acme/shop/bills",))
    assert rights("feeder", elsewhere) == set()
    assert rights("feeder", replace(RULES, topics=())) == set()  # the namespace as such
    assert rights("writer", elsewhere) == {Right.PRODUCE, Right.PRODUCE_OR_CONSUME}


def test_a_grant_on_a_partition_holds_for_that_partition() -> None:
    grants = AuthPolicies(destination_auth={PART: {"one": ("consume",)}})
    assert Right.CONSUME in rights("one", replace(RULES, grants=grants))
    assert rights("one", replace(RULES, grants=grants, topics=(TOPIC,))) == set()


def test_grants_without_a_namespace_or_tenant_are_none() -> None:
    assert rights("owner", Rules(frozenset({"root"}))) == set()
    assert rights("owner", Rules(frozenset({"root"}), ("owner",))) == {Right.TENANT_ADMIN, *ORDINARY}


def test_actions_that_are_not_about_messages_give_no_right() -> None:
    grants = AuthPolicies(namespace_auth={"f": ("functions", "sources", "sinks", "packages")})
    assert rights("f", replace(RULES, grants=grants)) == set()


def test_the_star_alone_stands_for_every_named_role() -> None:
    everyone = replace(RULES, grants=AuthPolicies(namespace_auth={"*": ("consume",)}))
    assert Right.CONSUME in rights("stranger", everyone)
    assert rights("", everyone) == set()


def test_the_roles_of_a_subscription_keep_others_out() -> None:
    grants = replace(GRANTS, subscription_auth_roles={"audit": ("both",), "open": ()})
    rules = replace(RULES, grants=grants)
    assert rules.permit("both", Right.CONSUME, "audit")
    assert not rules.permit("reader", Right.CONSUME, "audit")
    assert rules.permit("reader", Right.CONSUME, "open")
    assert rules.permit("reader", Right.CONSUME, "other")
    assert rules.permit("owner", Right.CONSUME, "audit")
    listed = replace(RULES, grants=replace(grants, subscription_auth_roles={"audit": ("stranger",)}))
    assert not listed.permit("stranger", Right.CONSUME, "audit")  # being listed is no grant


def test_the_mode_prefix_ties_names_of_subscriptions_to_roles() -> None:
    rules = replace(RULES, grants=replace(GRANTS, subscription_auth_mode="Prefix"))
    assert rules.permit("reader", Right.CONSUME, "reader-1")
    assert not rules.permit("reader", Right.CONSUME, "mine")
    assert rules.permit("owner", Right.CONSUME, "mine")
    assert rules.permit("root", Right.CONSUME, "mine")
    assert rules.permit("writer", Right.PRODUCE)


def test_records_of_older_versions_hold_no_grants() -> None:
    value = codec.encode(NamespacePolicies(max_topics=3))
    older = _without(value, "auth_policies")
    assert b"auth_policies" not in older
    assert codec.decode(NamespacePolicies, older) == NamespacePolicies(max_topics=3)
    kept = NamespacePolicies(auth_policies=GRANTS)
    assert codec.decode(NamespacePolicies, codec.encode(kept)) == kept


def _without(value: bytes, name: str) -> bytes:
    import json

    import crc32c

    body = json.loads(value.partition(b"\n")[2])
    del body[name]
    text = json.dumps(body).encode()
    return b"heliograph NamespacePolicies v1 %08x\n" % crc32c.crc32c(text) + text
