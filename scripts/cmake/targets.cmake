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
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
      COMPILE_OPTIONS "-xc++;-Wno-unknown-pragmas;-Wno-psabi;$<$<BOOL:${TESSERA_RACES}>:-fsanitize=thread;-DTESSERA_RACES>")
  endif()
endfunction()

# tessera_brief_optimization(TARGET): for code whose speed nobody notices, such as tests; it compiles in two thirds of the time. The sanitizers'
# build is not optimised at all, but where it computes.
function(tessera_brief_optimization target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:${TESSERA_SANITIZE}>>>:-O1>)
endfunction()

# One target per layer: a wrong include does not link. Its sources are all below its folder, but those named; a new file needs no line.
#   tessera_layer(NAME [EXCEPT files...] [SOURCES files...] LINKS libraries...)
function(tessera_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;EXCEPT;LINKS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
    list(REMOVE_ITEM ARG_SOURCES "" ${ARG_EXCEPT})
  endif()
  add_library(tessera_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(tessera_${name} PUBLIC tessera_flags ${ARG_LINKS})
  # Where whoever builds has CMAKE_UNITY_BUILD: so many sources at a time, which then read their headers once.
  set_target_properties(tessera_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
endfunction()
