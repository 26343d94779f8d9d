# Settings and functions for all targets of the project. A chapter includes it from ../common, or gets it from the
# installed package: find_package(multinode COMPONENTS chapter).
include_guard(DIRECTORY)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
include(environment)
include(CMakePushCheckState)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The files of a target are compiled as one, because their common headers and templates take most of the time. With
# -DCMAKE_UNITY_BUILD=OFF file by file, for short builds after each edit. No cache entry: it would hold for a project around
# this one.
if(NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)
find_program(CCACHE ccache)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER) # ccache fails where its folder is read-only, unless it knows that
  execute_process(COMMAND sh -c "test \"$('${CCACHE}' --get-config read_only)\" = true && exit
      folder=$('${CCACHE}' --get-config cache_dir) && mkdir -p \"$folder\" && test -w \"$folder\""
    RESULT_VARIABLE ccache_failed ERROR_QUIET)
endif()
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER AND NOT ccache_failed)
  # Another clone, and another build folder of the same depth, find what is compiled here.
  cmake_path(SET clone NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
  cmake_path(GET clone PARENT_PATH clone) # without the slash at its end
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${clone} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

include(multinode-find)
# The whole repository has tests by default, a chapter alone with -DBUILD_TESTING=ON, and a part of another project none.
if(NOT DEFINED MULTINODE_TESTS)
  set(MULTINODE_TESTS OFF)
  if(PROJECT_IS_TOP_LEVEL AND BUILD_TESTING)
    set(MULTINODE_TESTS ON)
  endif()
endif()
set(BUILD_TESTING ${MULTINODE_TESTS})
if(BUILD_TESTING)
  include(CTest)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(multinode_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion>
    # In a unity build g++ treats every .cpp as a header.
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
    # g++ 12 warns of overlaps in std::string's operator+ that do not exist (GCC bug 105651).
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
endfunction()

foreach(target programs lessons slow_tests gpu_tests tools tools-tests)
  if(NOT TARGET ${target})
    add_custom_target(${target})
  endif()
endforeach()

# multinode_tool(name): this folder is a tool apart from the course. Its programs and tests are not part of the default build,
# unless it is built alone, but of the targets tool-NAME and tool-NAME-tests (tools and tools-tests: of all tools). Its quick
# tests have the label NAME.
macro(multinode_tool name)
  set(MULTINODE_TOOL ${name})
  add_custom_target(tool-${name})
  add_custom_target(tool-${name}-tests)
  add_dependencies(tools tool-${name})
  add_dependencies(tools-tests tool-${name}-tests)
endmacro()

# multinode_runpath(target): the RUNPATH that a target has when it is installed, from the start. CMake would mark one that it
# replaces at installation with an empty element, which stands for the current folder: a library loaded by name would also
# be looked for there.
function(multinode_runpath target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  if(MULTINODE_EMULATED_GPU)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH ${CMAKE_BINARY_DIR}/emulated-gpu)
  endif()
endfunction()

# Code that waits for a network or for people is optimised little: -O3, CMake's own level of a release, compiles for 1.6 times
# as long. What computes, or measures, asks for it.
function(multinode_optimise_little) # target...
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endforeach()
endfunction()
function(multinode_optimise_fully) # target...
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endforeach()
endfunction()

# multinode_library(name sources...): a library for the programs and tests of a chapter.
function(multinode_library name)
  add_library(${name} STATIC ${ARGN})
  multinode_optimise_little(${name})
  target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC multinode::communicator PRIVATE fmt::fmt)
  multinode_warnings(${name})
endfunction()

# multinode_to_build(target...): of this chapter or folder, whose programs the target programs-FOLDER builds. `programs`
# builds those of all.
function(multinode_to_build)
  cmake_path(GET PROJECT_SOURCE_DIR FILENAME folder)
  if(NOT TARGET programs-${folder})
    add_custom_target(programs-${folder})
    add_dependencies(programs programs-${folder})
  endif()
  add_dependencies(programs-${folder} ${ARGN})
endfunction()

# multinode_program(name [ON_REQUEST] sources... [LINK lib...]): an example program. What it shares with tests is in a library
# and compiled once. `source env.sh` puts all programs on the PATH. Those of a chapter are installed into a folder with the
# chapter's name. ON_REQUEST: built only by its name, or by the target slow_tests.
function(multinode_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ON_REQUEST" "" "LINK")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  set(optional OPTIONAL)
  if(arg_ON_REQUEST)
    multinode_slow(${name})
  elseif(MULTINODE_TOOL)
    set(tests)
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/test$")
      set(tests -tests)
    endif()
    multinode_of_tool(tool-${MULTINODE_TOOL}${tests} ${name})
    set_property(GLOBAL APPEND PROPERTY MULTINODE_TOOL_PROGRAMS ${name})
  else()
    set(optional)
    multinode_to_build(${name})
    set_property(GLOBAL APPEND PROPERTY MULTINODE_PROGRAMS ${name})
  endif()
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_link_libraries(${name} PRIVATE fmt::fmt ${arg_LINK})
  multinode_runpath(${name})
  multinode_warnings(${name})
  multinode_optimise_little(${name})
  if(CMAKE_CURRENT_SOURCE_DIR STREQUAL PROJECT_SOURCE_DIR)
    multinode_on_path()
    cmake_path(GET PROJECT_SOURCE_DIR FILENAME chapter)
    install(TARGETS ${name} RUNTIME DESTINATION ${chapter} ${optional})
  endif()
endfunction()

# multinode_of_tool(to target): the target `to` builds this one, and the default build only where the tool is built alone.
function(multinode_of_tool to target)
  add_dependencies(${to} ${target})
  if(NOT PROJECT_IS_TOP_LEVEL)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# multinode_lesson(NAME.cpp [LINK lib...]): a lesson program: one file with plain library calls that uses nothing of common/.
# The command at its top compiles it without CMake, and like it a release here has -O2.
function(multinode_lesson file)
  cmake_path(GET file STEM name)
  multinode_program(${name} ${file} ${ARGN})
  target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O2>)
  add_dependencies(lessons ${name})
  set_property(GLOBAL APPEND PROPERTY MULTINODE_LESSONS ${name})
endfunction()

# Parts that the build requires: -DMULTINODE_REQUIRE="CUDA;NCCL"
foreach(part IN LISTS MULTINODE_REQUIRE)
  if(NOT MULTINODE_HAVE_${part})
    message(FATAL_ERROR "MULTINODE_REQUIRE names ${part}, and it was not found")
  endif()
endforeach()

# Prints which parts were found, what a build without the others lacks, and how to get them. Call it once at the end.
function(multinode_summary)
  message(STATUS "")
  message(STATUS "multi-node-cpp, what was found:")
  function(part name found gives how)
    if(${found})
      message(STATUS "  ${name}: yes")
    else()
      message(STATUS "  ${name}: NO, left out: ${gives}. To get it: ${how}")
    endif()
  endfunction()
  part("MPI " "${MULTINODE_HAVE_MPI}" "--backend mpi, mpirun" "apt install libopenmpi-dev openmpi-bin (or: module load openmpi)")
  part("Gloo" "${MULTINODE_HAVE_GLOO}" "--backend gloo" "apt install libgloo-dev")
  part("CUDA" "${MULTINODE_HAVE_CUDA}" "everything on GPUs" "the CUDA Toolkit, nvcc on the PATH (or: module load cuda); without a GPU: bash ci/setup gpu")
  part("NCCL" "${MULTINODE_HAVE_NCCL}" "--backend nccl" "apt install libnccl-dev from NVIDIA's repository, or -DNCCL_INCLUDE_DIR= -DNCCL_LIBRARY=; without a GPU: bash ci/setup gpu, then CUDACXX=~/.cache/multinode/cuda/nvidia/cu13/bin/nvcc bash ci/tour --into build/emulated")
  if(MULTINODE_EMULATED_GPU)
    message(STATUS "  CUDA and NCCL are emulated (tools/emulated-gpu): for correctness")
  endif()
  get_property(extra GLOBAL PROPERTY MULTINODE_SUMMARY)
  list(REMOVE_DUPLICATES extra)
  foreach(line IN LISTS extra)
    message(STATUS "  ${line}")
  endforeach()
  message(STATUS "")
endfunction()

# multinode_test(name sources... [RANKS n] [TIMEOUT s] [LABELS l...] [SLOW filter] [PREFIX 03.] [PROGRAMS target...]
#                [LINK lib...])
# A GoogleTest executable. ctest lists its tests as PREFIX + suite + test; those that `filter` matches get the label slow and
# twice the TIMEOUT (default: 900 s). Each program's path is the string macro PATH_<target>; programs with ON_REQUEST
# are for slow tests. With LABELS slow or gpu it is one test, PREFIX + name, built by the target slow_tests or gpu_tests.
# A test with LABELS gpu also runs on emulated GPUs, as PREFIX + name + _emulated.
function(multinode_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "RANKS;TIMEOUT;SLOW;PREFIX" "LABELS;PROGRAMS;LINK")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  multinode_warnings(${name})
  target_compile_options(${name} PRIVATE -O0) # the tested code is optimised, the tests need not be
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE multinode::testing GTest::gtest_main ${arg_LINK})
  foreach(program IN LISTS arg_PROGRAMS)
    if(TARGET ${program})
      target_compile_definitions(${name} PRIVATE "PATH_${program}=\"$<TARGET_FILE:${program}>\"")
      get_target_property(on_request ${program} EXCLUDE_FROM_ALL)
      if(NOT on_request OR arg_LABELS STREQUAL slow)
        add_dependencies(${name} ${program})
      endif()
    endif()
  endforeach()
  set(label unit)
  if(MULTINODE_TOOL)
    set(label ${MULTINODE_TOOL})
    multinode_of_tool(tool-${MULTINODE_TOOL}-tests ${name})
  endif()
  foreach(default "RANKS;1" "TIMEOUT;900" "LABELS;${label}")
    list(GET default 0 key)
    if(NOT DEFINED arg_${key})
      list(GET default 1 arg_${key})
    endif()
  endforeach()
  set(properties TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_RANKS} SKIP_RETURN_CODE 77)
  if(arg_LABELS MATCHES "^(slow|gpu)$")
    add_dependencies(${arg_LABELS}_tests ${name})
    add_test(NAME ${arg_PREFIX}${name} COMMAND ${name})
    set_tests_properties(${arg_PREFIX}${name} PROPERTIES ${properties} LABELS ${arg_LABELS})
    if(arg_LABELS STREQUAL gpu AND TARGET emulated_nccl)
      add_test(NAME ${arg_PREFIX}${name}_emulated COMMAND ${name})
      set_tests_properties(${arg_PREFIX}${name}_emulated PROPERTIES ${properties} LABELS local
        ENVIRONMENT "EMULATED_GPUS=4;LD_LIBRARY_PATH=$<TARGET_FILE_DIR:emulated_nccl>")
    else()
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    return()
  endif()
  set(discover ${name} TEST_PREFIX ${arg_PREFIX} DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES)
  set(quick)
  if(arg_SLOW)
    math(EXPR longer "2 * ${arg_TIMEOUT}")
    gtest_discover_tests(${discover} TEST_FILTER ${arg_SLOW} TEST_LIST ${name}_slow
      PROPERTIES TIMEOUT ${longer} PROCESSORS ${arg_RANKS} LABELS slow SKIP_RETURN_CODE 77)
    set(quick TEST_FILTER -${arg_SLOW})
  endif()
  gtest_discover_tests(${discover} ${quick} PROPERTIES ${properties} LABELS "${arg_LABELS}")
  if(MULTINODE_TOOL)
    multinode_tests_if_built(${name})
  endif()
endfunction()

# multinode_tests_if_built(name): where the default build leaves this executable out, ctest has no test NAME_NOT_BUILT.
function(multinode_tests_if_built name)
  get_property(files DIRECTORY PROPERTY TEST_INCLUDE_FILES)
  set(lines "")
  foreach(file IN LISTS files)
    if(file MATCHES "/${name}\\[[0-9]+\\]_include.cmake$")
      string(REPLACE _include.cmake _tests.cmake tests "${file}")
      string(APPEND lines "if(EXISTS [==[${tests}]==])\n  include([==[${file}]==])\nendif()\n")
      list(REMOVE_ITEM files "${file}")
    endif()
  endforeach()
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_if_built.cmake "${lines}")
  set_property(DIRECTORY PROPERTY TEST_INCLUDE_FILES ${files} ${CMAKE_CURRENT_BINARY_DIR}/${name}_if_built.cmake)
endfunction()

# multinode_slow(target...): built by the target slow_tests, not by default.
function(multinode_slow)
  foreach(target IN LISTS ARGV)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(slow_tests ${target})
  endforeach()
endfunction()

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH common)
cmake_path(SET emulated_gpu NORMALIZE ${common}/../tools/emulated-gpu)
if(MULTINODE_HAVE_NCCL AND NOT TARGET emulated_nccl AND NOT CMAKE_CURRENT_SOURCE_DIR STREQUAL emulated_gpu AND EXISTS ${emulated_gpu})
  add_subdirectory(${emulated_gpu} ${CMAKE_BINARY_DIR}/emulated-gpu)
endif()
if(NOT TARGET multinode::launch AND NOT CMAKE_CURRENT_SOURCE_DIR STREQUAL common AND EXISTS ${common}/CMakeLists.txt)
  add_subdirectory(${common} common)
  get_directory_property(MULTINODE_VERSION DIRECTORY ${common} DEFINITION PROJECT_VERSION)
endif()
