# In the sanitizers' build the readers (base, deck, families, io) tell what they run, for fuzz targets (validation/fuzz): libFuzzer is LLVM's, and works with g++ by
# validation/fuzz/coverage.cpp.
set(TESSERA_FUZZER "")
if(TESSERA_SANITIZE AND TESSERA_TESTS)
  file(GLOB fuzzers /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-${CMAKE_SYSTEM_PROCESSOR}.a)
  list(SORT fuzzers COMPARE NATURAL ORDER DESCENDING)
  if(fuzzers)
    list(GET fuzzers 0 TESSERA_FUZZER)
    add_library(tessera_coverage STATIC validation/fuzz/coverage.cpp)
    add_library(tessera_instrumented INTERFACE)
    target_compile_options(tessera_instrumented INTERFACE -fsanitize-coverage=trace-pc,trace-cmp)
  else()
    message(STATUS "libFuzzer was not found (Debian: libclang-rt-dev): the readers' fuzz tests are left out")
  endif()
endif()

#   tessera_instrument(TARGET...): these layers tell what they run.
function(tessera_instrument)
  if(TESSERA_FUZZER)
    foreach(target ${ARGN})
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tessera_instrumented> PUBLIC tessera_coverage)
    endforeach()
  endif()
endfunction()
