"""image-check as a test of ReFrame: it passes if every check passes, and what it measures are performance variables.

    IMAGE_CHECK=/opt/multinode/image-check/image-check reframe -c image_check.py -r -S suite=gate
"""

import json
import os
import re
import shlex

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable


@rfm.simple_test
class ImageCheck(rfm.RunOnlyRegressionTest):
    suite = variable(str, value="smoke")
    options = variable(str, value="")  # more of them: --site FILE, --launcher 'srun --mpi=pmix'
    valid_systems = valid_prog_environs = ["*"]
    executable = os.environ.get("IMAGE_CHECK", "image-check")
    local = True  # image-check starts the processes itself

    @run_before("run")
    def set_options(self):
        self.executable_opts = ["run", "--suite", self.suite, "-o", "out", *map(shlex.quote, shlex.split(self.options))]
        self.keep_files = ["out"]

    @sanity_function
    def every_check_passes(self):
        return sn.assert_eq(self.job.exitcode, 0, "image-check ended with status {0}: see out/report.html")

    @run_before("performance")
    def set_performance(self):
        with open(os.path.join(self.stagedir, "out", "results.jsonl"), encoding="utf-8") as lines:
            for sample in (line["sample"] for line in map(json.loads, lines) if "sample" in line):
                size = f"{sample['band_bytes']:.0f}" if sample["band_bytes"] >= 0 else ""
                name = re.sub(r"\W+", "_", f"{sample['metric']} {size} {sample['node']}".strip())
                value = sn.make_performance_function(sn.defer(sample["value"]), sample["unit"] or "value")
                self.perf_variables[name] = value
