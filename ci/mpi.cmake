# Builds the chapters that use MPI with another MPI, in TO, and runs their tests. -DFROM= -DTO= -DJOBS= -DOPTIONS= (for
# CMake) -DMPI=FOLDER of its mpicxx and mpirun -DSUFFIX= of these
cmake_minimum_required(VERSION 3.22)
find_program(CCACHE ccache)
if(CCACHE)
  list(APPEND OPTIONS -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
  set(ENV{CCACHE_BASEDIR} ${FROM})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${FROM} -B ${TO} ${OPTIONS} -DMULTINODE_REQUIRE=MPI
  -DMPI_CXX_COMPILER=${MPI}/mpicxx${SUFFIX} -DMPIEXEC_EXECUTABLE=${MPI}/mpirun${SUFFIX} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${TO} --parallel ${JOBS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${TO} --tests-regex "^(common|0)" --label-exclude "^(slow|gpu|hosts|slurm|machines)$"
    --parallel ${JOBS} --output-on-failure --no-tests=error --no-label-summary COMMAND_ERROR_IS_FATAL ANY)
