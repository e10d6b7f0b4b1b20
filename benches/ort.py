"""Times training steps of ONNX Runtime On-Device Training: answers lines as step.rs does. `ort.py FOLDER THREADS`."""

import importlib
import sys
import time
import types
from pathlib import Path

import numpy
import onnxruntime


def training_api():
    """onnxruntime.training.api, without what its package does when it is imported: it wants PyTorch."""
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules[package.__name__] = package
    return importlib.import_module("onnxruntime.training.api")


def inputs(folder):
    """The inputs by name, as inputs.txt lists them."""
    found = {}
    for line in (folder / "inputs.txt").read_text().splitlines():
        file, dtype, sizes, name = line.split(" ", 3)
        shape = [int(size) for size in sizes.split("x")]
        found[name] = numpy.fromfile(folder / file, dtype=dtype).reshape(shape)
    return found


def main():
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    api = training_api()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    path = lambda name: str(folder / name)
    module = api.Module(path("training_model.onnx"), state, path("eval_model.onnx"), session_options=options)
    optimizer = api.Optimizer(path("optimizer_model.onnx"), module)
    named = inputs(folder)
    feeds = [named[name] for name in module.input_names()]
    for line in sys.stdin:
        command, count = line.split()
        if command != "steps":
            raise SystemExit(f"there is no command {command!r}")
        times = []
        for _ in range(int(count)):
            start = time.perf_counter()
            module(*feeds)
            optimizer.step()
            module.lazy_reset_grad()
            times.append(f"{(time.perf_counter() - start) * 1e3:.5f}")
        print(*times, flush=True)


main()
