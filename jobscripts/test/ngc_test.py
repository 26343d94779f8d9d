#!/usr/bin/env python3
"""Holds the job scripts of bcp, and the stand-in for ngc, against the parser and the request builder of NVIDIA's own ngc, without a network.

usage: ngc_test.py FOLDER, with a Python that has ngcsdk 3 (bash ci/setup all installs it; 4.37 has no commands of Base Command any
more). Every script's command line must make a request that has the script as its command. The stand-in must accept and refuse
what ngc does. Exit status: 0 right, 1 wrong.
"""
import importlib.abc
import importlib.machinery
import io
import json
import os
import subprocess
import sys
import tempfile
import types
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

STAND_IN = Path(__file__).resolve().parents[2] / "ci/test-cluster/stand-ins/ngc"


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """ngcsdk imports two modules that its package lacks: the command line's own."""

    class Module(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return mock.MagicMock(__file__=f"{name}.py")

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("ngcpygo", "ngccli"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = self.Module(spec.name)
        module.__file__ = f"{spec.name}.py"
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Missing())


class Requested(BaseException):
    """What would be sent to NVIDIA."""


def the_parser():
    import ngcsdk
    from basecommand.api.jobs import JobsAPI
    from ngcbase.command.basecli import BaseCLIRunner

    class Runner(BaseCLIRunner):
        @staticmethod
        def import_modules():
            import basecommand.command.all_commands  # noqa: F401

    def submit(self, org_name, team_name, job_create_request):
        raise Requested(job_create_request.toDict())

    client = ngcsdk.Client(api_key="nvapi-" + "x" * 64)
    client.config.app_key = client.config.app_key or "nvapi-x"
    client.config.validate_configuration = lambda *_, **__: True
    JobsAPI.submit_job = submit
    JobsAPI._check_job_args = lambda *_, **__: None  # asks the server for the ace
    with mock.patch.object(type(client.config), "command_map", property(lambda _: None)):
        return Runner(client).get_parser()


def request(parser, words):
    """(the request of a command line, None), or (None, why ngc refuses it)."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            options = parser.parse_args(words)
            if words[:2] != ["batch", "run"]:
                return {}, None
            options.func(options)
    except Requested as found:
        return found.args[0], None
    except SystemExit:
        return None, said.getvalue().strip().rpartition("\n")[2]
    except Exception as error:  # the request builder has its own
        return None, f"{type(error).__name__}: {error}"
    return None, "no request was made"


def submitted(script, folder):
    """The command line that a job script gives to ngc."""
    ngc, file = folder / "ngc", folder / "words"
    ngc.write_text(f'#!{sys.executable}\nimport json, sys\nopen("{file}", "w").write(json.dumps(sys.argv[1:]))\n')
    ngc.chmod(0o755)
    file.unlink(missing_ok=True)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "OPTIONS": "-b 8 -e 8", "REQUIRE": "rdma"}
    subprocess.run(["bash", script], env=environment, stdin=subprocess.DEVNULL, check=True)
    return json.loads(file.read_text())


# What is appended to a right command line.
CHANGES = [
    [], ["--workspace", "w:/mnt/w:RO"], ["--workspace", "w:/mnt/w:RW"], ["--workspace", "w:/mnt/w"], ["--workspace", "w"], ["--workspace", "w:mnt"],
    ["--workspace", "w:/mnt/w:RX"], ["--total-runtime", "1h30m"], ["--total-runtime", "30m"], ["--total-runtime", "1D"], ["--total-runtime", "2 hours"],
    ["--total-runtime", "90"], ["--array-type", "PYTORCH"], ["--array-type", "PYTORCH", "--replicas", "2"], ["--array-type", "MPI", "--replicas", "2"],
    ["--array-type", "HOROVOD", "--replicas", "2"], ["--replicas", "2"], ["--replicas", "0", "--array-type", "MPI"], ["--replicas", "two"],
    ["--env-var", "A:b"], ["--env-var", "A=b"], ["--env-var", "A"], ["--port", "8888"], ["--preempt", "RUNONCE"], ["--preempt", "NEVER"],
    ["--imge", "b"], ["--result", "/mnt/a"], ["--work", "w:/mnt/w"],
]


def main():
    parser = the_parser()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scripts = [file for file in sorted(Path(sys.argv[1]).glob("*.sh")) if file.name != "job.sh"]
        for script in scripts:
            words = submitted(script, folder)
            made, why = request(parser, words)
            if made is None or made.get("command") != words[words.index("--commandline") + 1]:
                wrong += 1
                print(f"WRONG: {script.name}: {why or 'another command'}")
    base = ["batch", "run", "--name", "test", "--ace", "ace", "--instance", "dgxa100.80g.2.norm", "--image", "org/team/image:1", "--result", "/mnt/results",
            "--commandline", "true"]
    lines = [base + change for change in CHANGES] + [base[:2] + base[4:], ["workspace", "create", "--name", "test", "--ace", "ace"]]
    environment = {name: value for name, value in os.environ.items() if name != "MULTINODE_HOSTS"}
    with tempfile.TemporaryDirectory() as storage:
        for words in lines:
            made, why = request(parser, words)
            done = subprocess.run([STAND_IN, *words], env=environment | {"STAND_IN_STORAGE": storage}, capture_output=True, text=True)
            accepted = done.returncode == 0 or "MULTINODE_HOSTS is not set" in done.stderr  # its next step
            if accepted != (made is not None):
                wrong += 1
                print(f"WRONG: the stand-in {'accepts' if accepted else 'refuses'} and ngc {'accepts' if made is not None else 'refuses'} "
                      f"{' '.join(words[2:])}: {why or done.stderr.strip().splitlines()[-1]}")
    print(f"{len(scripts)} scripts, {len(lines)} command lines, {wrong} wrong")
    sys.exit(wrong > 0 or not scripts)


if __name__ == "__main__":
    main()
