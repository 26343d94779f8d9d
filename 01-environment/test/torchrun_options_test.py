"""Is each option of the installed torch's torchrun in torchrun-2.15-options? Exit status: 0 yes, 1 no, 77 there is no torch."""
import ast
import importlib.util
import pathlib
import re
import sys

spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit(77)
torch = pathlib.Path(spec.origin).parent
version = re.search(r"__version__ = '(\d+\.\d+)", (torch / "version.py").read_text()).group(1)
real = {word.value.replace("_", "-")
        for call in ast.walk(ast.parse((torch / "distributed/run.py").read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
        for word in call.args if word.value.startswith("-")}
ours = set((pathlib.Path(__file__).parent / "torchrun-2.15-options").read_text().split())
print(f"torch {version}: {len(real)} options; new: {sorted(real - ours)}; gone: {sorted(ours - real)}")
sys.exit(bool(not real or real - ours or (version == "2.15" and ours - real)))
