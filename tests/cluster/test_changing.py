"""What ranks that start or end at this moment say to whoever asks in another thread."""

from __future__ import annotations

from notebook_kernel import Notebook

ASK = """
import threading, time
from nbmn.cluster.whereabouts import where

def magic(line):
    name, _, rest = line.partition(" ")
    return lambda: get_ipython().run_line_magic(name, rest)

def answer(question):
    try:
        return str(question())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

class Meanwhile:
    '''Asks questions once %mn_where says that ranks change.'''

    def __init__(self, change, *questions):
        self.change, self.questions, self.answers = change, questions, []
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        deadline = time.monotonic() + 10
        while self.change not in answer(magic("mn_where")) and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        self.answers = [answer(question) for question in self.questions]
        self.seconds = time.monotonic() - began

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()
"""
STARTING = "2 ranks are starting; wait for that"
SAID = [
    f"NoRanksError: {STARTING}",
    f"NoRanksError: {STARTING}",
    f"NoRanksError: {STARTING}",
    f"ClusterError: {STARTING}, or stop the cell that does it",
    f"ClusterError: {STARTING}, or stop the cell that does it",
]
QUESTIONS = "*map(magic, ['mn_where', 'mn_interrupt', 'mn_status', 'mn_start 3', 'mn_stop'])"


def test_ranks_that_start_or_end_say_so(fresh: Notebook) -> None:
    fresh.check(ASK)
    fresh.check(f"asked = Meanwhile('starting', {QUESTIONS})\nwith asked: magic('mn_start 2')()")
    assert fresh.value("asked.answers") == SAID
    assert fresh.value("asked.seconds") < 5

    fresh.check(
        "old = get_ipython().magics_manager.registry['ClusterMagics'].context.session\n"
        "button = lambda: where(old, [0, 1])  # as a board calls it"
    )
    fresh.check("%%mn --bg\nimport time; time.sleep(60)")
    asked = f"asked = Meanwhile('starting', {QUESTIONS}, button)\n"
    fresh.check(f"{asked}with asked: magic('mn_restart')()")
    assert fresh.value("asked.answers") == [*SAID, "NoRanksError: the ranks were stopped"]
    assert fresh.value("asked.seconds") < 5

    fresh.check(
        "asked = Meanwhile('ending', magic('mn_interrupt'))\nwith asked: magic('mn_stop')()"
    )
    assert fresh.value("asked.answers") == ["NoRanksError: the ranks are ending; wait for that"]
    ran = fresh.run("%mn_where")
    assert "no ranks are running; start some with %mn_start 2" in ran.error
