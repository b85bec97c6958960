# What is not there is collected, and said once, with the names by which it can be had.

# tessera_missing(WHAT DEBIAN SPACK CONDA): one line of that message.
function(tessera_missing what debian spack conda)
  set_property(GLOBAL APPEND PROPERTY tessera_missing "  ${what}\n      Debian: ${debian}   Spack: ${spack}   conda-forge: ${conda}\n")
endfunction()

# tessera_need(FOUND WHAT DEBIAN SPACK CONDA): the same where the variable FOUND is false.
function(tessera_need found)
  if(NOT ${found})
    tessera_missing(${ARGN})
  endif()
endfunction()

# tessera_want(FOUND WHAT DEBIAN SPACK CONDA): what the program does without; said by itself where the variable FOUND is false.
function(tessera_want found what debian spack conda)
  if(NOT ${found})
    message(STATUS "Without ${what}. Debian: ${debian}   Spack: ${spack}   conda-forge: ${conda}")
  endif()
endfunction()

function(tessera_stop_where_missing)
  get_property(lines GLOBAL PROPERTY tessera_missing)
  if(lines)
    list(JOIN lines "" lines)
    message(FATAL_ERROR "Tessera needs what was not found:\n${lines}On Debian scripts/setup installs all of it. What lies elsewhere is found where "
      "CMAKE_PREFIX_PATH points: -DCMAKE_PREFIX_PATH=\"FOLDER;FOLDER\", or a variable of the environment with the same name, which modules and "
      "Spack set. docs/install.md has the steps.\n")
  endif()
endfunction()

# tessera_find_library(NAME HEADER LIBRARY): by header and file, for libraries whose packages seldom bring a CMake configuration. Makes the target
# tessera_NAME; sets NAME_FOUND and NAME_INCLUDE_DIR.
macro(tessera_find_library name header library)
  find_path(${name}_INCLUDE_DIR ${header})
  find_library(${name}_LIBRARY ${library})
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
  set(${name}_FOUND FALSE)
  add_library(tessera_${name} INTERFACE)
  if(${name}_INCLUDE_DIR AND ${name}_LIBRARY)
    set(${name}_FOUND TRUE)
    target_link_libraries(tessera_${name} INTERFACE ${${name}_LIBRARY})
    target_include_directories(tessera_${name} SYSTEM INTERFACE ${${name}_INCLUDE_DIR})
  endif()
endmacro()

# tessera_find_headers(PACKAGE TARGET HEADER): by CMake configuration; else by the header alone, for what has no library. Sets PACKAGE_FOUND.
macro(tessera_find_headers package target header)
  find_package(${package} QUIET CONFIG)
  if(NOT TARGET ${target})
    find_path(${package}_INCLUDE_DIR ${header})
    mark_as_advanced(${package}_INCLUDE_DIR)
    set(${package}_FOUND FALSE)
    if(${package}_INCLUDE_DIR)
      set(${package}_FOUND TRUE)
      set(${package}_VERSION "(version unknown)")
      add_library(${target} INTERFACE IMPORTED)
      target_include_directories(${target} SYSTEM INTERFACE ${${package}_INCLUDE_DIR})
    endif()
  endif()
endmacro()

# tessera_header_version(VARIABLE MACROS HEADER...): "1.2.3" of the numbers that these macros have in the first header that exists.
function(tessera_header_version variable macros)
  foreach(header ${ARGN})
    if(EXISTS ${header})
      file(STRINGS ${header} lines REGEX "^#[ \t]*define[ \t]+(${macros})[ \t]+[0-9\"]")
      list(TRANSFORM lines REPLACE "^.*[ \t]\"?([0-9.]+).*$" "\\1")
      list(JOIN lines "." version)
      set(${variable} "${version}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
