"""A link whose class lives in __main__ reaches another process by value."""

import subprocess
import sys

import chainer
import cloudpickle
import numpy as np

RECEIVER = """
import pickle, sys
import nbmn
model = pickle.load(sys.stdin.buffer)
import chainer
assert isinstance(model, chainer.Chain)
print(float(model(model.xp.ones((1, 3), "f")).array.sum()))
"""


def test_a_chain_defined_by_value_arrives():
    class Local(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = chainer.links.Linear(3, 2)

        def forward(self, x):
            return self.fc(x)

    model = Local()
    answer = subprocess.run(
        [sys.executable, "-c", RECEIVER],
        input=cloudpickle.dumps(model),
        capture_output=True,
        timeout=60,
        check=True,
    )
    expected = np.ones((1, 3), "f") @ model.fc.W.array.T + model.fc.b.array
    np.testing.assert_allclose(float(answer.stdout), expected.sum(), rtol=1e-6)
