# Ray's C++ API, as `pip install ray-cpp` installs it: target Ray::Cpp. It looks beside the program `ray`: the one in
# $MULTINODE_RAY or ~/.cache/multinode/ray (where ci/setup puts it), else the one on the PATH.
# libray_api.so has the ABI that libstdc++ had before 2015. What links to it can link to no other C++ library.
find_program(RayCpp_COMMAND ray HINTS $ENV{MULTINODE_RAY}/bin $ENV{HOME}/.cache/multinode/ray/bin)
if(RayCpp_COMMAND)
  cmake_path(GET RayCpp_COMMAND PARENT_PATH folder)
  cmake_path(GET folder PARENT_PATH folder)
  file(GLOB folders ${folder}/lib/python3*/site-packages/ray/cpp)
endif()
find_path(RayCpp_INCLUDE_DIR ray/api.h HINTS ${folders} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(RayCpp_LIBRARY ray_api HINTS ${folders} PATH_SUFFIXES lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RayCpp REQUIRED_VARS RayCpp_LIBRARY RayCpp_INCLUDE_DIR)
if(RayCpp_FOUND AND NOT TARGET Ray::Cpp)
  add_library(Ray::Cpp SHARED IMPORTED)
  set_target_properties(Ray::Cpp PROPERTIES IMPORTED_LOCATION ${RayCpp_LIBRARY} IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES ${RayCpp_INCLUDE_DIR} INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=0)
endif()
