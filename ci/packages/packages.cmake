# cpack makes two packages, as .deb and .tar.gz: `multinode` has all programs and the library, laid out as a build folder
# in /opt/multinode, and `multinode-node-check` has only what `image-check node` needs. Both fit the release they are built on.
install(FILES LICENSE DESTINATION . COMPONENT Unspecified)
set(CPACK_COMPONENTS_ALL Unspecified multinode)
if(TARGET image_check)
  install(TARGETS image_check node_check RUNTIME DESTINATION image-check COMPONENT node-check OPTIONAL)
  install(FILES LICENSE DESTINATION . COMPONENT node-check)
  list(APPEND CPACK_COMPONENTS_ALL node-check)
endif()

file(STRINGS /etc/os-release release REGEX "^(ID|VERSION_ID)=")
list(SORT release) # ID before VERSION_ID
list(TRANSFORM release REPLACE ".*=\"?([^\"]*)\"?" "\\1")
list(JOIN release "" release)
set(CPACK_PACKAGE_NAME multinode)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Examples and tools of multi-node computing over MPI, NCCL and Gloo")
set(CPACK_PACKAGE_VENDOR "the authors of multi-node-cpp")
set(CPACK_PACKAGE_CONTACT ${CPACK_PACKAGE_VENDOR})
set(CPACK_PACKAGE_VERSION ${MULTINODE_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /opt/multinode)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_BINARY_DIR}/cpack-options.cmake)
file(WRITE ${CPACK_PROJECT_CONFIG_FILE}
  "if(CPACK_GENERATOR STREQUAL TGZ)\n  set(CPACK_PACKAGING_INSTALL_PREFIX /multinode-${MULTINODE_VERSION})\nendif()\n")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # names the packages of the libraries
foreach(kind DEB ARCHIVE)
  set(CPACK_${kind}_COMPONENT_INSTALL ON)
endforeach()
set(CPACK_COMPONENT_UNSPECIFIED_GROUP multinode)
set(CPACK_COMPONENT_MULTINODE_GROUP multinode)
set(CPACK_COMPONENT_NODE-CHECK_GROUP node-check)
if(MULTINODE_HAVE_MPI)
  set(CPACK_DEBIAN_MULTINODE_PACKAGE_DEPENDS openmpi-bin) # mpirun
endif()
foreach(names "MULTINODE;multinode;multinode-node-check" "NODE-CHECK;multinode-node-check;multinode")
  list(POP_FRONT names group package other)
  set(file ${package}-${MULTINODE_VERSION}-${release}-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_DEBIAN_${group}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${group}_FILE_NAME ${file}.deb)
  set(CPACK_ARCHIVE_${group}_FILE_NAME ${file})
  set(CPACK_DEBIAN_${group}_PACKAGE_CONFLICTS ${other}) # the files of one are in the other
  set(CPACK_DEBIAN_${group}_PACKAGE_REPLACES ${other})
endforeach()
include(CPack)
