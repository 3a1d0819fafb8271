import pytest

from nbmn.communicators.calls import Kind, Signature
from nbmn.communicators.joining import fit, join
from nbmn.communicators.ledger import Past
from nbmn.communicators.link import Uid, code_of
from nbmn.communicators.renewal import (
    LinkReport,
    by_link,
    catch_up,
    checksum,
    in_step,
    make_plan,
    outstanding,
)

A, B = Uid((0, 1), 1), Uid((1, 2, 0), 1)


def report(uid=A, alive=True, **kind):
    zeros = (0,) * len(uid.members)
    return LinkReport(uid, alive, **{"sent": zeros, "received": zeros, **kind})


def total(by_rank):
    return sum(checksum(reports, rank) for rank, reports in enumerate(by_rank)) % 2**64


def test_all_in_order():
    everything = [
        [report(begun=5, digest=-3, sent=(0, 2)), report(B, begun=7)],
        [report(begun=5, digest=-3, received=(2, 0)), report(B, begun=7)],
        [report(B, begun=7)],
    ]
    assert total(everything) == 0
    found = by_link(everything)
    assert in_step(A, found[A])
    plan = make_plan(found)
    assert plan.drain == plan.free == plan.abandon == ()
    assert plan.lose == {}


@pytest.mark.parametrize(
    "change",
    [
        {"broken": True, "begun": 5},
        {"begun": 6},
        {"begun": 5, "digest": 1},
        {"begun": 5, "sent": (0, 1)},
        {"begun": 5, "received": (0, 1)},
    ],
)
def test_out_of_step_is_drained(change):
    everything = [
        [report(**{"settled": 4, **change}), report(B)],
        [report(begun=5, settled=5), report(B)],
        [report(B)],
    ]
    if "broken" not in change:
        assert total(everything) != 0
    plan = make_plan(by_link(everything))
    assert plan.drain == (A,)
    assert plan.settled == {A: 4}
    assert plan.free == plan.abandon == ()


def test_held_by_some_only_is_lost():
    everything = [[report()], [report(alive=False)]]
    assert total(everything) != 0
    plan = make_plan(by_link(everything))
    assert plan.lose == {A: "is no longer held by rank 1"}
    assert plan.free == (A,)
    assert plan.drain == ()


def test_freed_by_some_and_used_by_others_is_given_up():
    plan = make_plan(by_link([[report(broken=True)], []]))
    assert plan.free == (A,)
    assert plan.abandon == (A,)


def test_dropped_in_the_midst_is_drained_and_freed():
    plan = make_plan(by_link([[report(alive=False, broken=True, begun=1)], [report(alive=False)]]))
    assert plan.drain == plan.free == (A,)
    assert plan.lose == {}


def test_messages_under_way():
    at = {1: report(B, sent=(0, 3, 1)), 2: report(B, received=(1, 0, 0)), 0: report(B)}
    # Ranks of the link are places among its members.
    assert outstanding(B, at) == [[0, 0, 0], [2, 0, 0], [1, 0, 0]]


SUM = Signature(Kind.ALLREDUCE, 11, 8, -1, 0)
ROOT = Signature(Kind.BCAST, 12, 3, 1)
OTHER = Signature(Kind.OTHER)


def past(*signatures, first=1, digest=0):
    made = []
    for number, signature in enumerate(signatures, first):
        digest = hash((digest, *signature[:5]))
        made.append(Past(number, signature, digest))
    return made


def test_who_is_behind_catches_up_in_order():
    histories = {0: past(SUM, ROOT, SUM), 1: past(SUM), 2: []}
    assert catch_up(histories, 0, 3) == []
    assert catch_up(histories, 1, 3) == [ROOT, SUM]
    assert catch_up(histories, 2, 3) == [SUM, ROOT, SUM]


@pytest.mark.parametrize(
    "histories",
    [
        {0: past(SUM), 1: past(ROOT)},
        {0: past(SUM), 1: past(SUM._replace(count=9))},
        {0: past(SUM), 1: past(SUM._replace(op=1))},
        {0: past(ROOT), 1: past(ROOT._replace(root=0))},
        {0: past(OTHER), 1: []},
        {0: None, 1: past(SUM)},
        # The same now, but not the same before.
        {0: past(SUM, SUM)[1:], 1: past(ROOT, SUM)[1:]},
    ],
)
def test_calls_that_do_not_match_cannot_be_caught_up(histories):
    assert catch_up(histories, 0, 2) is None
    assert catch_up(histories, 1, 2) is None


def test_unknown_calls_that_all_began_just_end():
    assert catch_up({0: past(OTHER), 1: past(OTHER)}, 0, 2) == []


def test_joining_the_root_and_others_of_a_gather():
    at_root = Signature(Kind.GATHERV, 2, root=1, outgoing=(5,), incoming=(4, 5, 6))
    elsewhere = Signature(Kind.GATHERV, 2, root=1, outgoing=(4,))
    assert join({1: at_root}, 2, 3) == at_root._replace(outgoing=(6,), incoming=None)
    assert join({0: elsewhere}, 1, 3) == elsewhere._replace(outgoing=(0,), incoming=(4, 0, 0))
    assert join({0: elsewhere}, 2, 3) == elsewhere._replace(outgoing=(0,))
    assert fit({0: elsewhere, 1: at_root})
    assert not fit({2: elsewhere, 1: at_root})


def test_joining_the_root_and_others_of_a_scatter():
    at_root = Signature(Kind.SCATTERV, 2, root=0, outgoing=(4, 5), incoming=(4,))
    elsewhere = Signature(Kind.SCATTERV, 2, root=0, incoming=(5,))
    assert join({0: at_root}, 1, 2) == elsewhere
    assert join({1: elsewhere}, 0, 2) == at_root._replace(outgoing=(0, 5), incoming=(0,))
    assert not fit({0: at_root, 1: elsewhere._replace(incoming=(6,))})


def test_joining_an_exchange():
    one = Signature(Kind.ALLTOALLV, 2, outgoing=(1, 2, 3), incoming=(1, 20, 30))
    two = Signature(Kind.ALLTOALLV, 2, outgoing=(20, 5, 6), incoming=(2, 5, 60))
    assert fit({0: one, 1: two})
    assert not fit({0: one, 1: two._replace(incoming=(9, 5, 60))})
    joined = join({0: one, 1: two}, 2, 3)
    assert (joined.outgoing, joined.incoming) == ((30, 60, 0), (3, 6, 0))


def test_links_and_their_generations_have_names():
    names = {code_of(uid, generation) for uid in (A, B) for generation in range(5)}
    assert len(names) == 10
    assert code_of(A, 3) == code_of(Uid((0, 1), 1), 3)
