"""Distributed bugs that people report: what the notebook says, and that all goes on after."""

from __future__ import annotations

import pytest
from notebook_kernel import Notebook, works
from zoo import RANKS, Bug, Shown, ends_by_itself

RAISED = {
    "before the update": Bug(
        "model, optimizer = trained()\nfor i in range(3):\n"
        "    if comm.rank == 1 and i == 2:\n        raise ValueError('boom')\n"
        "    step(model, optimizer)",
        (
            "rank 1 raised ValueError at {cell} line 5: boom",
            "ranks 0, 2, 3 waited in ... #... (cell [...] line ...) for ... s, and nbmn freed them",
        ),
        "RanksFailed",
        "raised",
        (1,),
    ),
    "in a function of another cell": Bug(
        "if comm.rank == 3:\n    fail()\ncomm.barrier()",
        ("rank 3 raised ValueError at cell [", "ranks 0–2 waited in barrier #... ({cell} line 4)"),
        "RanksFailed",
        "raised",
        (3,),
    ),
    "on two ranks": Bug(
        "if comm.rank == 0: fail()\nif comm.rank == 2: 1 / 0\ncomm.allreduce(np.ones(3))",
        (
            "rank 0 raised ValueError",
            "rank 2 raised ZeroDivisionError at {cell} line 3",
            "ranks 1, 3 waited in allreduce #... ({cell} line 4)",
        ),
        "RanksFailed",
        "raised",
        (0, 2),
    ),
    "where another receives": Bug(
        "if comm.rank == 1: fail()\nif comm.rank == 0: comm.recv(1, tag=5)",
        ("rank 0 waited in recv from rank 1 with tag 5 ({cell} line 3)",),
        "RanksFailed",
        "raised",
        (1,),
    ),
    "in a chain": Bug(
        "if comm.rank == 0: fail()\nif comm.rank > 0: comm.recv(comm.rank - 1)",
        (
            "rank 1 waited in recv from rank 0 ({cell} line 3)",
            "rank 3 waited in recv from rank 2 ({cell} line 3)",
        ),
        "RanksFailed",
        "raised",
        (0,),
    ),
}

TRAINER = """from chainer import training
from chainer.training import extensions
shard = chainer.datasets.TupleDataset(np.ones((100, 5), "f"), np.zeros(100, "i"))
if comm.rank == 1: shard = shard[:40]
optimizer = nbmn.create_multi_node_optimizer(
    chainer.optimizers.SGD(0.1), comm, double_buffering={double})
model = L.Classifier(L.Linear(5, 2))
optimizer.setup(model)
def batches(**more):
    return chainer.iterators.SerialIterator(shard, 20, **more)
updater = training.StandardUpdater(batches(), optimizer)
trainer = training.Trainer(updater, (3, "epoch"), out=os.curdir)
evaluator = extensions.Evaluator(batches(repeat=False, shuffle=False), model)
trainer.extend(nbmn.create_multi_node_evaluator(evaluator, comm))
trainer.run()"""

OUT_OF_DATA = {
    "and enters the evaluator": Bug(
        "model, optimizer = trained()\nfor i in range(9 if comm.rank == 2 else 10):\n"
        "    step(model, optimizer)\ncomm.allreduce_obj(1.0)",
        (
            "rank 2 raised MismatchError at {cell} line 5",
            "ranks 0, 1, 3 raised MismatchError at cell [",
            "rank 2 called ... at cell [... at least once less than ranks 0, 1, 3: fewer",
        ),
        "RanksFailed",
    ),
    "and is done": Bug(
        "model, optimizer = trained()\nfor i in range(9 if comm.rank == 2 else 10):\n"
        "    step(model, optimizer)",
        (
            "rank 2 has finished the cell; ranks 0, 1, 3 waited in ",
            "at least once less than ranks 0, 1, 3: fewer iterations, or a branch not taken",
        ),
        kind="left",
        culprits=(2,),
    ),
    "two batches early": Bug(
        "for i in range(7 - 2 * (comm.rank == 0)):\n    comm.allreduce(np.ones(1000))",
        (
            "rank 0 has finished the cell; ranks 1–3 waited in allreduce #... ({cell} line 3)",
            "rank 0 called allreduce at {cell} line 3 at least once less than ranks 1–3: fewer",
        ),
        kind="left",
        culprits=(0,),
    ),
    "in an even lap": Bug(
        "for i in range(4 + (comm.rank == 3)):\n    comm.allgather_obj(i)",
        ("ranks 0–2 have finished the cell; rank 3 waited in allgather_obj", "fewer iterations"),
        kind="left",
        culprits=(0, 1, 2),
    ),
}

OUT_OF_DATA |= {
    "and comes to another line, on two ranks of four": Bug(
        "for i in range(5 - comm.rank // 2): comm.allreduce(np.ones(2))\ncomm.barrier()",
        (
            "ranks 0, 1 raised MismatchError at {cell} line 2",
            "ranks 2, 3 called allreduce at {cell} line 2 at least once less than ranks 0, 1: ",
        ),
        "RanksFailed",
    ),
    "and flushes a mean that has not come": Bug(
        "model = L.Linear(4, 2)\noptimizer = nbmn.create_multi_node_optimizer(\n"
        "    chainer.optimizers.SGD(0.1), comm, double_buffering=True).setup(model)\n"
        "for i in range(5 - (comm.rank == 2)): step(model, optimizer)\noptimizer.flush()",
        (
            "rank 2 has finished the cell; ranks 0, 1, 3 waited in finish_mean_grad #... ({cell} ",
            "rank 2 called optimizer.update at least once less than ranks 0, 1, 3: fewer",
        ),
        kind="left",
        culprits=(2,),
    ),
    "and flushes nothing": Bug(
        "model = L.Linear(4, 2)\noptimizer = nbmn.create_multi_node_optimizer(\n"
        "    chainer.optimizers.SGD(0.1), comm, double_buffering=True).setup(model)\n"
        "for i in range(5 - (comm.rank == 2)): step(model, optimizer)",
        (
            "rank 2 has finished the cell; ranks 0, 1, 3 wait in the background for the mean of a",
            "rank 2 called optimizer.update at least once less than ranks 0, 1, 3: fewer",
        ),
        kind="left",
        culprits=(2,),
    ),
    "in a trainer": Bug(
        TRAINER.format(double=False),
        ("rank 1 called average_gradients at {cell} line ... at least once less than ranks 0, 2",),
        "RanksFailed",
    ),
    "in a trainer with double buffering": Bug(
        TRAINER.format(double=True),
        ("rank 1 called finish_mean_grad at {cell} line ... at least once less than ranks 0, 2",),
        kind="apart",
        culprits=(0, 1, 2, 3),
    ),
}

ONE_RANK_ONLY = {
    name: Bug(
        f"if comm.rank == 0:\n    {call}",
        (
            f"ranks 1–3 have finished the cell; rank 0 waited in {name}",
            "({cell} line 3)",
            f"ranks 1–3 did not call {name} at {{cell}} line 3",
        ),
        kind="left",
        culprits=(1, 2, 3),
    )
    for name, call in {
        "allreduce": "comm.allreduce(np.ones(3))",
        "barrier": "comm.barrier()",
        "create_communicator": "nbmn.create_communicator()",
    }.items()
}

ORDER = {
    "on one communicator": Bug(
        "x = np.ones(3)\nif comm.rank == 0:\n    comm.bcast(x)\n    comm.allreduce(x)\n"
        "else:\n    comm.allreduce(x)\n    comm.bcast(x)",
        (
            "rank 0 raised MismatchError at {cell} line 4",
            "ranks 1–3 raised MismatchError at {cell} line 7",
            "rank 0: bcast",
            "rank 1: allreduce",
        ),
        "RanksFailed",
    ),
    "of two communicators": Bug(
        "a, b = nbmn.create_communicator(), nbmn.create_communicator()\nif comm.rank < 2:\n"
        "    a.barrier()\n    b.barrier()\nelse:\n    b.barrier()\n    a.barrier()",
        (
            "ranks are in different calls and wait for each other: ",
            "ranks 0, 1 waited in barrier #1 of communicator ... of ranks 0–3 ({cell} line 4)",
            "ranks 2, 3 waited in barrier #1 of communicator ... of ranks 0–3 ({cell} line 7)",
        ),
        kind="apart",
        culprits=(0, 1, 2, 3),
    ),
    "of a collective and a message": Bug(
        "if comm.rank == 0:\n    comm.recv(1)\nelse:\n    comm.barrier()\n"
        "if comm.rank == 1:\n    comm.send(np.ones(3), 0)",
        (
            "rank 0 waited in recv from rank 1 ({cell} line 3)",
            "ranks 1–3 waited in barrier #... ({cell} line 5)",
        ),
        kind="apart",
        culprits=(0, 1, 2, 3),
    ),
}

SHAPES = {
    "of a model": Bug(
        "model, optimizer = trained(101 if comm.rank == 2 else 100)\nstep(model, optimizer)",
        ("raised MismatchError at", "parameter /", "rank 2: (101,", "ranks 0, 1, 3: (100,"),
        "RanksFailed",
    ),
    "of an array": Bug(
        "comm.allreduce(np.ones(3 + (comm.rank == 1)))",
        ("raised MismatchError at {cell} line 2", "rank 1: allreduce float64 (4,)"),
        "RanksFailed",
    ),
    "or dtypes": Bug(
        "with chainer.using_config('dtype', np.float16 if comm.rank == 3 else np.float32):\n"
        "    model, optimizer = trained()\nstep(model, optimizer)",
        (
            "raised MismatchError at",
            "parameter /",
            "rank 3: ... float16",
            "ranks 0, 1, 2: ... float32",
        ),
        "RanksFailed",
    ),
}

MESSAGES = {
    "one more than is received": Bug(
        "for i in range(5):\n    if comm.rank == 0:\n        comm.send(np.ones(100_000), 1)\n"
        "    elif comm.rank == 1 and i < 4:\n        comm.recv(0)",
        (
            "rank 1 has finished the cell; rank 0 waited in send to rank 1 ({cell} line 4)",
            "What one rank sends, the other must receive, with the same tag, in the same order",
        ),
        kind="left",
        culprits=(1,),
    ),
    "a ring of sends": Bug(
        "comm.send(np.ones(1_000_000), (comm.rank + 1) % 4)\ncomm.recv((comm.rank - 1) % 4)",
        (
            "ranks wait for each other's messages: rank 0 waited in send to rank 1 ({cell} line 2)",
            "rank 3 waited in send to rank 0 ({cell} line 2)",
            "let every other rank receive first",
        ),
        kind="messages",
        culprits=(0, 1, 2, 3),
    ),
    "two send large objects": Bug(
        "if comm.rank in (1, 2):\n    comm.send_obj(b'x' * 50_000_000, 3 - comm.rank)\n"
        "    comm.recv_obj(3 - comm.rank)",
        ("rank 1 waited in send_obj to rank 2 ({cell} line 3)",),
        kind="messages",
        culprits=(1, 2),
    ),
    "other tags": Bug(
        "if comm.rank == 0:\n    comm.recv(2, tag=7)\nelif comm.rank == 2:\n"
        "    comm.send(np.ones(3), 0, tag=8)",
        (
            "rank 0 waited in recv from rank 2 with tag 7 ({cell} line 3)",
            "rank 2 waited in send to rank 0 with tag 8 ({cell} line 5)",
        ),
        kind="messages",
        culprits=(0, 2),
    ),
    "nobody sends": Bug(
        "if comm.rank == 0:\n    comm.recv_obj(3)",
        ("rank 3 has finished the cell; rank 0 waited in recv_obj from rank 3 ({cell} line 3)",),
        kind="left",
        culprits=(3,),
    ),
    "nobody receives": Bug(
        "if comm.rank == 2:\n    comm.send(np.ones(3), 1)",
        ("rank 1 has finished the cell; rank 2 waited in send to rank 1 ({cell} line 3)",),
        kind="left",
        culprits=(1,),
    ),
    "from any rank": Bug(
        "from mpi4py import MPI\nif comm.rank == 2:\n    comm.recv(MPI.ANY_SOURCE)",
        (
            "ranks 0, 1, 3 have finished the cell; rank 2 waited in recv from any rank "
            "({cell} line 4)",
        ),
        kind="left",
        culprits=(0, 1, 3),
    ),
}


def _cases(**kinds: dict[str, Bug]) -> list:
    return [
        pytest.param(bug, id=f"{kind}: {name}")
        for kind, bugs in kinds.items()
        for name, bug in bugs.items()
    ]


@pytest.mark.parametrize(
    "bug",
    _cases(
        raised=RAISED,
        out_of_data=OUT_OF_DATA,
        one_rank_only=ONE_RANK_ONLY,
        order=ORDER,
        shapes=SHAPES,
        messages=MESSAGES,
    ),
)
def test_a_bug_ends_its_cell(zoo: Notebook, bug: Bug) -> None:
    ends_by_itself(zoo, bug)


def test_the_diagnosis_appears_while_the_cell_runs(zoo: Notebook) -> None:
    """Rank 3 computes on: the cell goes on, and says what happened to the others."""
    cell = zoo.next_cell()
    said = f"rank 1 raised ValueError at {cell} line 2; ranks 0, 2 wait in recv from rank 1"
    shown = Shown(said)
    ran = zoo.run(
        "%%mn\nif comm.rank == 1: raise ValueError('boom')\n"
        "if comm.rank in (0, 2): comm.recv(1)\nif comm.rank == 3: time.sleep(3)",
        on_message=shown,
    )
    assert shown.after < 2.5
    assert "ranks 0, 2 waited" in ran.error
    works(zoo, RANKS)


def test_a_branch_taken_on_one_rank_only(zoo: Notebook) -> None:
    """Parameters that only one rank has initialised."""
    zoo.check(
        """%%mn -o got
class Branches(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.second = L.Linear(None, 2), L.Linear(None, 2)
    def forward(self, x, both):
        y = self.first(x)
        return y + self.second(x) if both else y

model = Branches()
optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm)
optimizer.setup(model)
for i in range(3):
    model.cleargrads()
    F.sum(model(np.ones((2, 4), np.float32), comm.rank == 1 and i == 1)).backward()
    optimizer.update()
float(model.second.W.array.sum())"""
    )
    values = zoo.value("got")
    assert len(set(values.values())) == 1
    works(zoo, RANKS)
