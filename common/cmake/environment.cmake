# env.sh at the top of the build folder: it puts the programs on the PATH and makes mpirun work on small machines.

# multinode_on_path([folder]): env.sh puts the programs of this folder of the build on the PATH (default: the current one).
function(multinode_on_path)
  get_property(folders GLOBAL PROPERTY MULTINODE_PROGRAM_FOLDERS)
  if(NOT folders)
    cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL multinode_write_environment)
    install(FILES ${CMAKE_BINARY_DIR}/installed/env.sh DESTINATION .)
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR})
  if(ARGC)
    set(folder ${ARGV0})
  endif()
  cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${CMAKE_BINARY_DIR})
  if(NOT folder IN_LIST folders)
    set_property(GLOBAL APPEND PROPERTY MULTINODE_PROGRAM_FOLDERS ${folder})
  endif()
endfunction()

function(multinode_write_environment)
  get_property(folders GLOBAL PROPERTY MULTINODE_PROGRAM_FOLDERS)
  list(TRANSFORM folders REPLACE ".+" "\"$multinode_build/\\0\"")
  get_filename_component(mpi "${MPIEXEC_EXECUTABLE}" DIRECTORY)
  if(mpi AND NOT mpi STREQUAL "/usr/bin") # an MPI of a module: its mpirun comes before the system's
    list(PREPEND folders "\"${mpi}\"")
  endif()
  if(MULTINODE_EMULATED_GPU AND CMAKE_CUDA_COMPILER)
    get_filename_component(nvcc "${CMAKE_CUDA_COMPILER}" DIRECTORY)
    list(PREPEND folders "\"${nvcc}\"")
  endif()
  list(JOIN folders " " folders)
  find_file(MULTINODE_ENV_SH env.sh NO_DEFAULT_PATH
    PATHS ${CMAKE_CURRENT_FUNCTION_LIST_DIR} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  mark_as_advanced(MULTINODE_ENV_SH)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MULTINODE_ENV_SH})
  file(READ ${MULTINODE_ENV_SH} settings)
  string(REGEX REPLACE "^(#[^\n]*\n)+\n" "" settings "${settings}") # its head comment
  if(nvcc)
    string(APPEND settings "
# CUDA's compiler of ci/setup gpu. It links programs with the emulated libraries, and finds them before its own folder:
# the runtime there lacks what the emulated NCCL and cuBLAS need.
export NVCC_PREPEND_FLAGS=\"\${NVCC_PREPEND_FLAGS--L${CMAKE_BINARY_DIR}/emulated-gpu}\"
export NVCC_APPEND_FLAGS=\"\${NVCC_APPEND_FLAGS--cudart shared}\"
case \":\${CPATH-}:\" in
  *\":${MULTINODE_CUDA_INCLUDE_DIR}:\"*) ;;
  *) export CPATH=\"${MULTINODE_CUDA_INCLUDE_DIR}\${CPATH:+:\$CPATH}\" ;;
esac
case \":\${LIBRARY_PATH-}:\" in
  *\":${CMAKE_BINARY_DIR}/emulated-gpu:\"*) ;;
  *) export LIBRARY_PATH=\"${CMAKE_BINARY_DIR}/emulated-gpu\${LIBRARY_PATH:+:\$LIBRARY_PATH}\" ;;
esac
")
  endif()
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/env.sh.in ${CMAKE_BINARY_DIR}/env.sh @ONLY)
  # Installed programs lie in folders of one level.
  string(REGEX REPLACE "(multinode_build)/[^ \"]*/" "\\1/" folders "${folders}")
  set(CMAKE_BINARY_DIR ${CMAKE_INSTALL_PREFIX})
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/env.sh.in installed/env.sh @ONLY)
endfunction()
