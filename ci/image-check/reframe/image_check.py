"""image-check as a test of ReFrame: its checks are one sanity check, what it measures are performance variables.

    IMAGE_CHECK=/opt/multinode/image-check/image-check reframe -c image_check.py -r -S suite=gate
"""

import json
import os
import shlex

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_before, sanity_function, variable


@rfm.simple_test
class ImageCheck(rfm.RunOnlyRegressionTest):
    suite = variable(str, value="smoke")
    options = variable(str, value="")  # more of them: --site FILE, --launcher 'srun --mpi=pmix'
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = os.environ.get("IMAGE_CHECK", "image-check")
    local = True  # image-check starts the processes itself

    @run_before("run")
    def set_options(self):
        words = ["run", "--suite", self.suite, "-o", "out", *shlex.split(self.options)]
        self.executable_opts = [shlex.quote(word) for word in words]
        self.keep_files = ["out"]

    def results(self, kind):
        with open(os.path.join(self.stagedir, "out", "results.jsonl"), encoding="utf-8") as lines:
            return [line[kind] for line in map(json.loads, lines) if kind in line]

    @sanity_function
    def every_check_passes(self):
        failed = [check["check"] for check in self.results("check") if check["status"] not in ("pass", "skip")]
        return sn.all(
            [
                sn.assert_eq(failed, [], "these checks did not pass: {0}"),
                sn.assert_eq(self.job.exitcode, 0, "image-check ended with status {0}"),
            ]
        )

    @run_before("performance")
    def set_performance(self):
        def value_of(sample):
            @performance_function(sample["unit"] or "value")
            def value(self):
                return sample["value"]

            return value(self)

        for sample in self.results("sample"):
            name = "_".join(
                str(part)
                for part in (sample["metric"], "" if sample["band_bytes"] < 0 else int(sample["band_bytes"]), sample["node"])
                if part != ""
            )
            self.perf_variables["".join(c if c.isalnum() else "_" for c in name)] = value_of(sample)
