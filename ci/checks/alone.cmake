# Copies CHAPTER and common/ from FROM to TO, as a reader would who wants no more, and configures, builds and tests the
# chapter there. -DFROM= -DTO= -DCHAPTER= -DOPTIONS= (for CMake)
# With -DBUILD= the package that this build folder installs takes the place of common/. With -DRUN= that command line is
# the test, in the new build folder; its first line of output has to be EXPECT.
cmake_minimum_required(VERSION 3.22)
foreach(list OPTIONS RUN) # separated by |
  string(REPLACE "|" ";" ${list} "${${list}}")
endforeach()
file(REMOVE_RECURSE ${TO})
file(COPY ${FROM}/${CHAPTER} DESTINATION ${TO})
cmake_path(GET CHAPTER FILENAME folder)
if(BUILD)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component multinode --prefix ${TO}/package
    COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND OPTIONS -DCMAKE_PREFIX_PATH=${TO}/package)
else()
  file(COPY ${FROM}/common DESTINATION ${TO})
endif()
find_program(CCACHE ccache)
if(CCACHE)
  list(APPEND OPTIONS -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
  set(ENV{CCACHE_BASEDIR} ${TO}) # the same sources under another path are found in the cache
endif()
execute_process(COMMAND bash ${FROM}/ci/checks/build_jobs OUTPUT_VARIABLE JOBS OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
if(NOT RUN)
  list(APPEND OPTIONS -DBUILD_TESTING=ON)
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${TO}/${folder} -B ${TO}/build ${OPTIONS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${TO}/build --parallel ${JOBS} COMMAND_ERROR_IS_FATAL ANY)
if(NOT RUN AND NOT EXISTS ${TO}/build/env.sh)
  message(FATAL_ERROR "${CHAPTER} alone has no env.sh in its build folder")
endif()
if(RUN)
  execute_process(COMMAND ${RUN} WORKING_DIRECTORY ${TO}/build OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output STREQUAL "${EXPECT}\n")
    message(FATAL_ERROR "${RUN} printed\n${output}instead of\n${EXPECT}")
  endif()
else()
  execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${TO}/build --tests-regex "^[0-9]"
    --label-exclude "^(slow|gpu)$" --parallel ${JOBS} --output-on-failure --no-tests=error --no-label-summary
    COMMAND_ERROR_IS_FATAL ANY)
endif()
