"""Every collective against a model of it on one process."""

import functools
import operator

import numpy as np
from hypothesis import strategies as st
from mpi4py import MPI
from rank_tools import need_ranks
from together import (
    DTYPES,
    LAYOUTS,
    NUMBERS,
    SHAPES,
    Spec,
    assert_same,
    for_all,
    make,
    messages,
    specs,
)

from nbmn.communicators import collectives, objects

CHUNKS = st.sampled_from([1, 7, 64, 2**28])
SEEDS = st.integers(0, 1000)


def per_rank(comm, strategy):
    return st.lists(strategy, min_size=comm.size, max_size=comm.size)


def roots(comm):
    return st.integers(0, comm.size - 1)


def check_allreduce(comm):
    @st.composite
    def examples(draw):
        kinds = draw(st.lists(st.tuples(st.sampled_from(NUMBERS), SHAPES), min_size=1, max_size=3))
        is_tuple = draw(st.booleans())
        by_rank = [
            tuple(
                Spec(dtype, shape, draw(st.sampled_from(LAYOUTS)), draw(SEEDS), small=True)
                for dtype, shape in kinds
            )
            for _ in range(comm.size)
        ]
        return by_rank if is_tuple else [specs[0] for specs in by_rank]

    def check(comm, by_rank):
        inputs = [make(message) for message in by_rank]
        mine = inputs[comm.rank]
        before = [a.copy() for a in mine] if isinstance(mine, tuple) else mine.copy()
        got = comm.allreduce(mine)
        if isinstance(mine, tuple):
            right = tuple(total(arrays) for arrays in zip(*inputs, strict=True))
            assert_same(mine, tuple(before))
        else:
            right = total(inputs)
            assert_same(mine, before)
        assert_same(got, right)

    for_all(comm, examples(), check)


def total(arrays):
    return np.asarray(functools.reduce(operator.add, arrays)).astype(arrays[0].dtype)


def check_allreduce_wraps_integers_around(comm):
    dtypes = ["int8", "uint8", "int16", "uint32", "int64", "uint64"]

    def check(comm, example):
        dtype, shape, seeds = example
        inputs = [Spec(dtype, shape, "plain", seed).make() for seed in seeds]
        assert_same(comm.allreduce(inputs[comm.rank]), total(inputs))

    examples = st.tuples(st.sampled_from(dtypes), SHAPES, per_rank(comm, SEEDS))
    for_all(comm, examples, check, 50)


def check_bcast(comm):
    def check(comm, example):
        message, root, chunk = example
        right = make(message)
        mine = right if comm.rank == root else None
        got = comm.bcast(mine, root)
        if comm.rank == root:
            assert got is mine
        else:
            assert_same(got, right)
            assert_writable(got)
        again = collectives.bcast(comm._link, mine, root, chunk)
        assert_same(again, right)

    for_all(comm, st.tuples(messages(), roots(comm), CHUNKS), check)


def assert_writable(arrays):
    for array in arrays if isinstance(arrays, tuple) else [arrays]:
        assert array.flags.writeable
        assert array.flags.aligned


def alike(comm):
    """Messages for all ranks, of equal dtypes and any shapes."""

    @st.composite
    def draw_all(draw, count):
        dtypes = draw(st.lists(st.sampled_from(DTYPES), max_size=2))
        one = draw(st.booleans()) or not dtypes
        if one:
            return [draw(specs([dtypes[0] if dtypes else "float32"])) for _ in range(count)]
        return [tuple(draw(specs([dtype])) for dtype in dtypes) for _ in range(count)]

    return draw_all


def check_gather(comm):
    def check(comm, example):
        by_rank, root, chunk = example
        inputs = [make(message) for message in by_rank]
        for got in [
            comm.gather(inputs[comm.rank], root),
            collectives.gather(comm._link, inputs[comm.rank], root, chunk),
        ]:
            if comm.rank == root:
                assert_same(got, tuple(inputs))
            else:
                assert got is None

    for_all(comm, st.tuples(alike(comm)(comm.size), roots(comm), CHUNKS), check)


def check_allgather(comm):
    def check(comm, example):
        by_rank, chunk = example
        inputs = [make(message) for message in by_rank]
        assert_same(comm.allgather(inputs[comm.rank]), tuple(inputs))
        again = collectives.allgather(comm._link, inputs[comm.rank], chunk)
        assert_same(again, tuple(inputs))
        for array in again:
            assert_writable(array)

    for_all(comm, st.tuples(alike(comm)(comm.size), CHUNKS), check)


def check_alltoall(comm):
    size = comm.size

    def check(comm, example):
        flat, chunk = example
        table = [[make(flat[size * i + j]) for j in range(size)] for i in range(size)]
        right = tuple(row[comm.rank] for row in table)
        assert_same(comm.alltoall(table[comm.rank]), right)
        again = collectives.alltoall(comm._link, tuple(table[comm.rank]), chunk)
        assert_same(again, right)

    for_all(comm, st.tuples(alike(comm)(size * size), CHUNKS), check)


def check_scatter(comm):
    def check(comm, example):
        by_rank, root, chunk = example
        parts = [make(message) for message in by_rank]
        mine = parts if comm.rank == root else None
        assert_same(comm.scatter(mine, root), parts[comm.rank])
        again = collectives.scatter(comm._link, mine, root, chunk)
        assert_same(again, parts[comm.rank])
        assert_writable(again)

    for_all(comm, st.tuples(alike(comm)(comm.size), roots(comm), CHUNKS), check)


def check_rows_of_one_array(comm):
    """Scatter and alltoall cut one array along its first axis."""

    def check(comm, example):
        specs, root = example
        inputs = [spec.make() for spec in specs]
        mine = inputs[root] if comm.rank == root else None
        assert_same(comm.scatter(mine, root), inputs[root][comm.rank, ...])
        right = tuple(array[comm.rank, ...] for array in inputs)
        assert_same(comm.alltoall(inputs[comm.rank]), right)

    @st.composite
    def examples(draw):
        dtype = draw(st.sampled_from([d for d in DTYPES if "," not in d]))
        rows = SHAPES.map(lambda shape: (comm.size, *shape[:2]))
        return draw(per_rank(comm, specs([dtype], rows))), draw(roots(comm))

    for_all(comm, examples(), check, 100)


def pairs(comm):
    return st.permutations(range(comm.size)).map(lambda ranks: ranks[:2])


def check_send_and_recv(comm):
    need_ranks(comm, 2)

    def check(comm, example):
        message, (source, dest), tag, any_source, any_tag = example
        data = make(message)
        if comm.rank == source:
            comm.send(data, dest, tag)
        if comm.rank == dest:
            got = comm.recv(
                MPI.ANY_SOURCE if any_source else source, MPI.ANY_TAG if any_tag else tag
            )
            assert_same(got, data)
            assert_writable(got)

    flags = st.booleans()
    tags = st.integers(0, 32767)
    for_all(comm, st.tuples(messages(), pairs(comm), tags, flags, flags), check)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def check_bcast_obj(comm):
    def check(comm, example):
        obj, root, longest = example
        mine = obj if comm.rank == root else None
        assert comm.bcast_obj(mine, longest, root) == obj
        assert comm.bcast_obj(mine, root=root) == obj

    for_all(comm, st.tuples(OBJECTS, roots(comm), CHUNKS), check)


def check_gather_obj_and_allgather_obj(comm):
    def check(comm, example):
        objs, root, longest = example
        mine = objs[comm.rank]
        assert comm.gather_obj(mine, root) == (objs if comm.rank == root else None)
        assert comm.allgather_obj(mine) == objs
        payload = objects.dump(mine)
        assert objects.allgather_dumped(comm._link, payload, longest) == objs
        got = objects.gather_dumped(comm._link, payload, root, longest)
        assert got == (objs if comm.rank == root else None)

    for_all(comm, st.tuples(per_rank(comm, OBJECTS), roots(comm), CHUNKS), check)


def check_allreduce_obj(comm):
    summable = [st.integers(), st.text(max_size=300), st.lists(LEAVES, max_size=3)]

    def check(comm, objs):
        assert comm.allreduce_obj(objs[comm.rank]) == functools.reduce(operator.add, objs)

    for_all(comm, st.one_of([per_rank(comm, kind) for kind in summable]), check)


def check_send_obj_and_recv_obj(comm):
    need_ranks(comm, 2)

    def check(comm, example):
        obj, (source, dest), tag, any_source, default_tag = example
        if comm.rank == source:
            comm.send_obj(obj, dest, tag)
        if comm.rank == dest:
            status = MPI.Status()
            options = {} if default_tag else {"tag": tag}
            got = comm.recv_obj(MPI.ANY_SOURCE if any_source else source, status, **options)
            assert got == obj
            assert (status.Get_source(), status.Get_tag()) == (source, tag)

    flags = st.booleans()
    tags = st.integers(0, 32767)
    for_all(comm, st.tuples(OBJECTS, pairs(comm), tags, flags, flags), check)


def check_objects_with_large_arrays(comm):
    """They stay out of the pickle, and share no memory with what was given."""

    def check(comm, example):
        sizes, root, longest = example
        everyone = [
            {"large": np.full(size, r, np.uint8), "f": np.ones((size // 16, 2), order="F"), "r": r}
            for r, size in enumerate(sizes)
        ]
        mine = everyone[comm.rank]
        payload = objects.dump(mine)
        assert (len(payload) > 1) == (sizes[comm.rank] >= objects.APART)
        given = payload if comm.rank == root else None
        got = objects.bcast(comm._link, given, root, longest)
        if comm.rank != root:
            assert_equal(got, everyone[root])
        allgot = objects.allgather_dumped(comm._link, payload, longest)
        gathered = objects.gather_dumped(comm._link, payload, root, longest)
        for other in [allgot, gathered] if comm.rank == root else [allgot]:
            for a, b in zip(other, everyone, strict=True):
                assert_equal(a, b)
                a["large"][:] = 255
        assert (mine["large"] == comm.rank).all()
        if comm.size > 1:
            if comm.rank == 0:
                comm.send_obj(everyone[0], 1)
            elif comm.rank == 1:
                assert_equal(comm.recv_obj(0), everyone[0])

    def assert_equal(a, b):
        assert a["r"] == b["r"]
        assert_same(a["large"], b["large"])
        assert_same(a["f"], b["f"])

    sizes = st.sampled_from([16, 1000, objects.APART - 16, objects.APART, 3 * objects.APART])
    chunks = st.sampled_from([100_000, 2**28])
    for_all(comm, st.tuples(per_rank(comm, sizes), roots(comm), chunks), check, 30)


def check_split(comm):
    colors = st.integers(0, 2) | st.none()

    def check(comm, keys):
        color, key = keys[comm.rank]
        mates = sorted(
            (r for r in range(comm.size) if keys[r][0] == color), key=lambda r: (keys[r][1], r)
        )
        part = comm.split(color, key)
        if color is None:
            assert part is None
            return
        assert (part.rank, part.size) == (mates.index(comm.rank), len(mates))
        assert part.allgather_obj(comm.rank) == mates
        assert part.allreduce(np.array([2.0**comm.rank]))[0] == sum(2.0**r for r in mates)
        assert (part.intra_rank, part.inter_size) == (part.rank, 1)

    keys = st.tuples(colors, st.integers(-(2**31), 2**31 - 1))
    for_all(comm, per_rank(comm, keys), check, 60)
