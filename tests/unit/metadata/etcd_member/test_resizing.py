"""Another number of etcd members: what is refused, who joins and leaves in which order, and what a broken call left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from heliograph.base.errors import BadRequestError, ConflictError, ServiceNotReadyError
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership
from heliograph.metadata.etcd_member.resizing import (
    ListedMember,
    MemberChange,
    check_wanted,
    next_change,
    without,
)

ALL = tuple(EtcdMember(f"metadata-{number}", f"10.0.0.{number}", 2377 + 2 * number) for number in range(1, 8))
NAMES = [member.name for member in ALL]


def of(count: int) -> EtcdMembership:
    return EtcdMembership("c1", ALL[:count], is_formed=True)


def listed(*members: EtcdMember, learner: str = "") -> list[ListedMember]:
    return [
        ListedMember(number, member.name, (member.peer_url(None),), member.name == learner)
        for number, member in enumerate(members, 1)
    ]


def following(
    membership: EtcdMembership, found: list[ListedMember], wanted: int, serving: Collection[str] = NAMES
) -> MemberChange | None:
    candidates = [member for member in ALL if member not in membership.members]
    return next_change(membership, found, candidates, serving, wanted, None)


@pytest.mark.parametrize("wanted", [0, 2, 4, 7, -1])
def test_numbers_that_survive_no_more_failures_are_refused(wanted: int) -> None:
    with pytest.raises(BadRequestError) as refused:
        check_wanted(of(3), NAMES, wanted)
    assert refused.value.limit == "1, 3, 5"


@pytest.mark.parametrize(
    ("count", "serving", "wanted", "error"),
    [
        (3, ["metadata-1"], 5, ServiceNotReadyError),  # nothing can be changed
        (3, ["metadata-1"], 1, ServiceNotReadyError),
        (3, ["metadata-1", "metadata-2"], 5, ConflictError),
        (1, ["metadata-1"], 3, None),
        (5, NAMES, 1, None),
        (3, ["metadata-1", "metadata-2"], 1, None),  # the one that is away leaves first
        (5, ["metadata-3", "metadata-4", "metadata-5"], 3, None),
        (5, ["metadata-1", "metadata-4"], 3, ServiceNotReadyError),
    ],
)
def test_a_majority_is_never_given_up(
    count: int, serving: list[str], wanted: int, error: type[Exception] | None
) -> None:
    if error is None:
        check_wanted(of(count), serving, wanted)
        return
    with pytest.raises(error, match="start"):
        check_wanted(of(count), serving, wanted)


@pytest.mark.parametrize(("begin", "wanted"), [(1, 3), (1, 5), (3, 5), (3, 3), (5, 3), (5, 1), (3, 1)])
def test_members_join_and_leave_one_at_a_time(begin: int, wanted: int) -> None:
    membership, steps = of(begin), []
    while change := following(membership, listed(*membership.members), wanted):
        steps.append(change.member.name)
        assert len(steps) < 10
        assert change.is_new
        if change.joins:
            membership = replace(membership, members=(*membership.members, change.member))
        else:
            membership = without(membership, change.member.name)
    assert [member.name for member in membership.members] == NAMES[:wanted]
    assert len(steps) == abs(wanted - begin)
    assert steps == (NAMES[begin:wanted] if wanted > begin else NAMES[wanted:begin][::-1])


def test_one_that_does_not_serve_leaves_first() -> None:
    change = following(of(3), listed(*ALL[:3]), 1, ["metadata-2", "metadata-3"])
    assert change is not None
    assert (change.member.name, change.joins, change.listed) == ("metadata-1", False, listed(*ALL[:3])[0])


def test_a_call_that_was_interrupted_is_finished() -> None:
    added = listed(*ALL[:4], learner="metadata-4")
    for unnamed in (added, [*added[:3], replace(added[3], name="")]):
        again = following(of(3), unnamed, 5)
        assert again == MemberChange(ALL[3], joins=True, listed=unnamed[3])
        undone = following(of(3), unnamed, 3)
        assert undone == MemberChange(ALL[3], joins=False, listed=unnamed[3])
    removed = following(of(3), listed(*ALL[:2]), 1)
    assert removed == MemberChange(ALL[2], joins=False), "it is off the list, and still on the record"


def test_a_member_of_the_roster_without_a_vote_joins_or_leaves() -> None:
    added = listed(*ALL[:4], learner="metadata-4")
    assert following(of(4), added, 5) == MemberChange(ALL[3], joins=True, listed=added[3])
    assert following(of(4), added, 3) == MemberChange(ALL[3], joins=False, listed=added[3])


def test_members_of_others_are_not_touched() -> None:
    stranger = EtcdMember("mine", "10.9.9.9", 2379)
    with pytest.raises(ConflictError, match=r"http://10\.9\.9\.9:2380"):
        following(of(3), listed(*ALL[:3], stranger), 1)
    gone = listed(*ALL[:3], stranger, learner="mine")  # a node that ended while it joined
    assert following(of(3), gone, 5) == MemberChange(stranger, joins=False, listed=gone[3])


def test_without_a_node_none_joins() -> None:
    with pytest.raises(ConflictError, match="no node for 2 more"):
        next_change(of(3), listed(*ALL[:3]), [], NAMES, 5, None)
