# How this project makes its targets.

# tessera_uses_kokkos(TARGET): the few files that include Kokkos; where it has CUDA they pass through nvcc, by a launcher of Kokkos' own.
function(tessera_uses_kokkos target)
  target_link_libraries(${target} PRIVATE Kokkos::kokkos)
  if(TESSERA_CUDA)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "")
    kokkos_compilation(TARGET ${target})
  endif()
endfunction()

# Sources in CUDA: nvcc compiles them for GPUs; the emulator takes them as C++, where `#pragma unroll` is not known, and vectors passed by value would
# each bring a note about old compilers' ABI.
function(tessera_cuda_sources)
  if(TESSERA_EMULATE)
    # A GPU faults at an address that is not aligned; processors go on. The thread sanitizer's build leaves that check to the other one.
    set(watched "-fsanitize=alignment;-fno-sanitize-recover=alignment")
    if(TESSERA_RACES)
      set(watched "-fsanitize=thread;-DTESSERA_RACES")
    endif()
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-Wno-unknown-pragmas;-Wno-psabi;${watched}")
  endif()
endfunction()

# tessera_computes(TARGET): its loops take time.
function(tessera_computes target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:${TESSERA_SANITIZE}>>>:-O2>)
endfunction()

# One target per layer: a wrong include does not link. Its sources are all below its folder, but those named; a new file needs no line. A build that joins
# sources (CMAKE_UNITY_BUILD) deals them out to JOINED files of equal number: a file reads its headers and instantiates its templates once for all of them,
# and neighbours of the alphabet, which are often the same kind of work, go to different files. Without a number a file takes forty sources. Sources that
# ask for the backend of GPUs (base/backend.hpp) are joined with one another: a compiler cache gives all others from the host's build to the GPUs'.
#   tessera_layer(NAME [EXCEPT files...] [SOURCES files...] [JOINED n] LINKS libraries...)
function(tessera_layer name)
  cmake_parse_arguments(ARG "" "JOINED" "SOURCES;EXCEPT;LINKS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
    list(REMOVE_ITEM ARG_SOURCES "" ${ARG_EXCEPT})
  endif()
  add_library(tessera_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(tessera_${name} PUBLIC tessera_flags ${ARG_LINKS})
  list(LENGTH ARG_SOURCES count)
  if(NOT ARG_JOINED)
    math(EXPR ARG_JOINED "(${count} + 39) / 40")
  endif()
  set_target_properties(tessera_${name} PROPERTIES UNITY_BUILD_MODE GROUP)
  set(number 0)
  foreach(source ${ARG_SOURCES})
    file(STRINGS ${source} backend REGEX "^#include \"base/backend.hpp\"")
    if(backend)
      set(group backend)
    else()
      math(EXPR group "${number} % ${ARG_JOINED}")
      math(EXPR number "${number} + 1")
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}_${group})
  endforeach()
endfunction()
