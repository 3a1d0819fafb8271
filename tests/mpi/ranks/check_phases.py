import time

import chainer
import numpy as np
from check_optimizer import DATA, LABELS, classifier

import nbmn
from nbmn.communicators import world
from nbmn.engine.tracing import Tracer
from nbmn.phases import phase, phases


def marked(since):
    return [each for each in phases().all() if each.begin >= since]


def steps_of(comm, double_buffering):
    model = classifier(0)
    optimizer = nbmn.create_multi_node_optimizer(
        chainer.optimizers.SGD(0.1), comm, double_buffering=double_buffering
    ).setup(model)
    began = time.monotonic()
    for _ in range(3):
        with phase("data"):
            x, t = DATA.copy(), LABELS.copy()
        optimizer.update(model, x, t)
    if double_buffering:
        optimizer.flush()
    return began, marked(began)


def check_phases_of_the_multi_node_optimizer(comm):
    began, found = steps_of(comm, double_buffering=False)
    assert [each.name for each in found] == ["data", "forward", "backward", "update"] * 3
    times = [edge for each in found for edge in (each.begin, each.end)]
    assert times == sorted(times)
    assert times[0] >= began
    assert {each.file for each in found} == {__file__}  # the user's lines
    assert len({each.line for each in found}) == 2


def check_phases_of_double_buffering(comm):
    _, found = steps_of(comm, double_buffering=True)
    names = [each.name for each in found]
    assert names[:3] == ["data", "forward", "backward"]
    assert [names.count(name) for name in ("forward", "backward", "update")] == [3, 3, 3]


def check_gradients_of_the_users_own_backward(comm):
    model = classifier(0)
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    model.cleargrads()
    model(DATA, LABELS).backward()
    began = time.monotonic()
    optimizer.update()
    assert [each.name for each in marked(began)] == ["update"]


def check_communication_lies_between_backward_and_update(comm):
    began, _ = steps_of(comm, double_buffering=False)
    spans = [span for span in Tracer(world()).timeline(3).spans if span.begin >= began]
    names = [span.name for span in spans]
    start = len(names) - 1 - names[::-1].index("forward")
    assert names[start:] == ["forward", "backward", "average_gradients", "update"]
    mean = spans[start + 2]
    assert mean.number > 0
    assert spans[start + 1].end <= mean.begin <= mean.end <= spans[start + 3].begin
    assert mean.where.startswith("check_phases.py line ")


def check_collectives_have_the_same_name_on_all_ranks(comm):
    with phase("talk"):
        comm.allreduce(np.ones(3))
    last = [span for span in Tracer(world()).timeline(1).spans if span.name == "allreduce"][-1]
    told = comm.allgather_obj((last.link, last.number))
    assert len(set(told)) == 1
