# Copies CHAPTER and common/ from FROM to TO, as a reader would who wants no more, and configures, builds and tests the
# chapter there. -DFROM= -DTO= -DCHAPTER= -DJOBS= -DOPTIONS= (for CMake)
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE ${TO})
file(COPY ${FROM}/common ${FROM}/${CHAPTER} DESTINATION ${TO})
find_program(CCACHE ccache)
if(CCACHE)
  list(APPEND OPTIONS -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
  set(ENV{CCACHE_BASEDIR} ${TO}) # the same sources under another path are found in the cache
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${TO}/${CHAPTER} -B ${TO}/build ${OPTIONS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${TO}/build --parallel ${JOBS} COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS ${TO}/build/env.sh)
  message(FATAL_ERROR "${CHAPTER} alone has no env.sh in its build folder")
endif()
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${TO}/build --tests-regex "^[0-9]" --label-exclude "^(slow|gpu)$"
    --parallel ${JOBS} --output-on-failure --no-tests=error --no-label-summary COMMAND_ERROR_IS_FATAL ANY)
