"""Worker processes: one thread of torch's in each, Ctrl-C left to their parent, and no life after it."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess

import torch


def begin_worker() -> None:
    """Set up a worker process: the initializer of a pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has: killed, it could not tell its workers."""
    parent.join()
    os._exit(1)
