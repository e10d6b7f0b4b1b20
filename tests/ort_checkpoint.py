"""Does ONNX Runtime resume from a checkpoint that ontrain wrote, with the same losses?

    python tests/ort_checkpoint.py FOLDER

FOLDER holds:

    training_model.onnx, eval_model.onnx
    optimizer_model.onnx      may be missing: then only gradients accumulate
    checkpoint                written by ontrain
    input_0.npy, input_1.npy  one per input of the training model, in its order: [batches, ...]
    losses.json               {"first_step": 50, "lr": 0.01, "losses": [...], "tolerance": 1e-5,
                               "eval_loss": 0.5}

Step number i takes batch i % batches, its loss is taken before its update, and the optimizer steps
after every train step. "losses" are ontrain's for the steps from "first_step" on; "tolerance"
(1e-5 unless given) is absolute for losses below 1, else relative; "eval_loss", if given, is ontrain's
for batch 0 after the last step. Needs numpy < 2 and onnxruntime-training-cpu 1.19.2; says so and
succeeds without.
"""

import glob
import importlib.metadata
import json
import math
import os
import sys
import tempfile

PACKAGE, VERSION = "onnxruntime-training-cpu", "1.19.2"


def installed():
    try:
        return importlib.metadata.version(PACKAGE) == VERSION
    except importlib.metadata.PackageNotFoundError:
        return False


class Session:
    """ORT's training session through the compiled bindings.

    The package's Python classes are thin covers over these, but importing them asks for PyTorch.
    """

    def __init__(self, folder):
        from onnxruntime.capi import _pybind_state as ort

        def path(name):
            found = os.path.join(folder, name)
            return found if os.path.exists(found) else None

        self.ort = ort
        self.state = ort.load_checkpoint(os.path.join(folder, "checkpoint"))
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        cpu = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)
        training = os.path.join(folder, "training_model.onnx")
        self.module = ort.Module(training, self.state, path("eval_model.onnx"), cpu, options)
        optimizer = path("optimizer_model.onnx")
        self.optimizer = ort.Optimizer(optimizer, self.state, cpu, options) if optimizer else None

    def _loss(self, step, inputs):
        fetched = self.ort.OrtValueVector()
        step(inputs, fetched)
        return float(fetched[0].numpy().reshape(-1)[0])

    def train_step(self, inputs):
        loss = self._loss(self.module.train_step, inputs)
        if self.optimizer:
            self.optimizer.optimizer_step()
            self.module.lazy_reset_grad()
        return loss

    def eval_step(self, inputs):
        return self._loss(self.module.eval_step, inputs)

    def save_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint")
            self.ort.save_checkpoint(self.state, path, True)
            return os.path.getsize(path)


def close(a, b, tolerance):
    return abs(a - b) <= tolerance * max(1.0, abs(b)) or (math.isnan(a) and math.isnan(b))


def main(folder):
    import numpy

    with open(os.path.join(folder, "losses.json")) as file:
        expected = json.load(file)
    names = sorted(glob.glob(os.path.join(folder, "input_*.npy")), key=lambda p: int(p.rsplit("_", 1)[1][:-4]))
    inputs = [numpy.load(name) for name in names]
    if not inputs or not expected["losses"]:
        print("failed: no inputs or no losses to compare")
        return 1
    session = Session(folder)
    if session.optimizer:
        session.optimizer.set_learning_rate(expected["lr"])
    first, tolerance = expected.get("first_step", 0), expected.get("tolerance", 1e-5)
    failures, largest = 0, 0.0

    def compare(what, ort, ontrain):
        nonlocal failures, largest
        largest = max(largest, abs(ort - ontrain))
        if not close(ontrain, ort, tolerance):
            failures += 1
            print(f"{what}: ONNX Runtime {ort:.9g}, ontrain {ontrain:.9g}")

    for step, loss in enumerate(expected["losses"], first):
        batch = [values[step % len(values)] for values in inputs]
        compare(f"step {step}", session.train_step(batch), loss)
    if "eval_loss" in expected:
        compare("eval", session.eval_step([values[0] for values in inputs]), expected["eval_loss"])
    session.save_again()
    count = len(expected["losses"])
    verdict = f"failed: {failures} losses differ" if failures else "ok"
    print(f"{verdict}: {count} steps from step {first}, largest difference {largest:.3g}, tolerance {tolerance:g}")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not installed():
        print(f"skipped: {PACKAGE} {VERSION} is not installed")
        sys.exit(0)
    sys.exit(main(sys.argv[1]))
