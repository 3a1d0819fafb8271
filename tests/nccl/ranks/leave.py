"""Ends in a way that is named: ``leave.py WAY``."""

import os
import signal
import sys

from nccl_tools import interrupt_in_nccl, model_on_device, on_gpus, standin

from nbmn.communicators import BrokenCommunicatorError


def main(way):
    nccl = on_gpus(timeout=60.0)
    model, _ = model_on_device(nccl)
    nccl.multi_node_mean_grad(model)
    model, _ = model_on_device(nccl)
    if way == "left":
        HELD.append(nccl)
    elif way == "finalized":
        nccl.finalize()
    else:
        standin().block(nccl.rank == 1)
        dies = way == "killed" and nccl.rank == 1
        if way == "interrupted" or dies:
            interrupt_in_nccl(nccl, number=signal.SIGKILL if dies else signal.SIGINT)
        try:
            nccl.multi_node_mean_grad(model)
        except KeyboardInterrupt:
            HELD.append(nccl)
        except BrokenCommunicatorError as error:
            print(error, flush=True)
            os._exit(0)  # MPI would wait for the other


HELD = []
main(*sys.argv[1:])
