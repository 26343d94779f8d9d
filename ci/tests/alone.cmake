# Copies CHAPTER and common/ from FROM to TO, as a reader would who wants no more, and configures, builds and tests the
# chapter there. -DFROM= -DTO= -DCHAPTER= -DOPTIONS= (for CMake) -DTARGETS= (default: all) -DTESTS= (default: the chapter's)
# CHAPTER may also be a tool: tools/NAME.
# With -DBUILD= the package that this build folder installs takes the place of common/.
cmake_minimum_required(VERSION 3.22)
string(REPLACE "|" ";" OPTIONS "${OPTIONS}") # separated by |
file(REMOVE_RECURSE ${TO})
cmake_path(GET CHAPTER PARENT_PATH parent)
file(COPY ${FROM}/${CHAPTER} DESTINATION ${TO}/${parent})
if(BUILD)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component multinode --prefix ${TO}/package
    COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND OPTIONS -DCMAKE_PREFIX_PATH=${TO}/package)
else()
  file(COPY ${FROM}/common DESTINATION ${TO})
endif()
execute_process(COMMAND bash ${FROM}/ci/tests/build_jobs OUTPUT_VARIABLE JOBS OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
set(build ${TO}/build/alone) # as deep as build/release, for ccache
execute_process(COMMAND ${CMAKE_COMMAND} -S ${TO}/${CHAPTER} -B ${build} ${OPTIONS} -DBUILD_TESTING=ON COMMAND_ERROR_IS_FATAL ANY)
if(NOT TARGETS)
  set(TARGETS all)
  set(TESTS "^[0-9]")
endif()
string(REPLACE "|" ";" TARGETS "${TARGETS}")
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --target ${TARGETS} --parallel ${JOBS} COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS ${build}/env.sh)
  message(FATAL_ERROR "${CHAPTER} alone has no env.sh in its build folder")
endif()
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --tests-regex "${TESTS}"
  --label-exclude "^(slow|gpu)$" --parallel ${JOBS} --output-on-failure --no-tests=error --no-label-summary
  COMMAND_ERROR_IS_FATAL ANY)
