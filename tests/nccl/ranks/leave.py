"""Ends in a way that is named, and writes what it was told: ``leave.py WAY FILE``."""

import os
import pathlib
import signal
import sys

from nccl_tools import interrupt_in_nccl, model_on_device, on_gpus, standin

from nbmn.communicators import BrokenCommunicatorError


def main(way, said):
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
            # Not printed: a launcher that lost a rank may lose output too.
            said.write_text(str(error))
            os._exit(0)  # MPI would wait for the other


HELD = []
main(sys.argv[1], pathlib.Path(sys.argv[2]))
