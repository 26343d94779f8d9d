# Copies CHAPTER and common/ from FROM to TO, as a reader would who wants no more, and configures, builds and tests the
# chapter there. -DFROM= -DTO= -DCHAPTER= -DOPTIONS= (for CMake)
# With -DBUILD= the package that this build folder installs takes the place of common/.
cmake_minimum_required(VERSION 3.22)
string(REPLACE "|" ";" OPTIONS "${OPTIONS}") # separated by |
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
execute_process(COMMAND bash ${FROM}/ci/checks/build_jobs OUTPUT_VARIABLE JOBS OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
set(build ${TO}/build/alone) # as deep as build/release, for ccache
execute_process(COMMAND ${CMAKE_COMMAND} -S ${TO}/${folder} -B ${build} ${OPTIONS} -DBUILD_TESTING=ON COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --parallel ${JOBS} COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS ${build}/env.sh)
  message(FATAL_ERROR "${CHAPTER} alone has no env.sh in its build folder")
endif()
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --tests-regex "^[0-9]"
  --label-exclude "^(slow|gpu)$" --parallel ${JOBS} --output-on-failure --no-tests=error --no-label-summary
  COMMAND_ERROR_IS_FATAL ANY)
