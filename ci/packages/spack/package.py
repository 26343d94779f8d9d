# For Spack: spack repo create multinode-repo; cp package.py into packages/multi_node_cpp/; spack repo add; spack install multi-node-cpp
# The project has no published archive yet: give the address of a clone, spack develop --path CLONE multi-node-cpp@main.
from glob import glob

from spack.package import *


class MultiNodeCpp(CMakePackage, CudaPackage):
    """Examples and tools of multi-node computing over MPI, NCCL and Gloo, each with a known answer."""

    homepage = "REPOSITORY"
    git = "REPOSITORY"
    license("Apache-2.0")
    version("main", branch="main")

    variant("mpi", default=True, description="mpirun and --backend mpi")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("boost+program_options")
    depends_on("fmt")
    depends_on("nlohmann-json")
    depends_on("pugixml")
    depends_on("hwloc")
    depends_on("zlib-api")
    depends_on("openblas")
    depends_on("rdma-core", when="platform=linux")
    depends_on("mpi", when="+mpi")
    depends_on("nccl", when="+cuda")

    conflicts("%gcc@:10", msg="g++ 11 has the first std::source_location")

    def cmake_args(self):
        args = [
            self.define("BUILD_TESTING", False),
            self.define("MULTINODE_GLOO", False),  # Spack has no Gloo
            self.define_from_variant("MULTINODE_MPI", "mpi"),
            self.define_from_variant("MULTINODE_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("MULTINODE_REQUIRE", "CUDA;NCCL"))
            if self.spec.variants["cuda_arch"].value != ("none",):
                args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

    def setup_run_environment(self, env):
        for folder in glob(join_path(self.prefix, "*-*", "")):  # chapters, and image-check
            env.prepend_path("PATH", folder)
