# How this project makes its tests.
if(NOT TESSERA_TESTS)
  return()
endif()
enable_testing()
add_library(tessera_test_main STATIC validation/test_main.cpp)
target_link_libraries(tessera_test_main PUBLIC tessera_flags GTest::gtest)

# What tests that start ranks find in their environment. Open MPI refuses to start as root or more ranks than cores, and binds each rank to a core,
# unless it is told otherwise.
set(tessera_launch_environment "MPIEXEC=${MPIEXEC_EXECUTABLE}")
if(TESSERA_OPEN_MPI)
  list(APPEND tessera_launch_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none)
endif()
# hwloc's plug-in for PCI is unloaded with what its library still held, which the leak checker then takes for lost. Debian brings it with Open MPI.
if(TESSERA_SANITIZE)
  list(APPEND tessera_launch_environment HWLOC_COMPONENTS=-pci)
endif()

#   tessera_starts_ranks(TEST): the test calls mpiexec.
function(tessera_starts_ranks test)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "${tessera_launch_environment}")
endfunction()

#   tessera_waits(TEST...): the tests wait for events most of their time, so scripts/profile_tests runs them beside those that compute.
function(tessera_waits)
  set_property(TEST ${ARGN} APPEND PROPERTY LABELS waits)
endfunction()

#   tessera_rank_test(NAME RANKS COMMAND...): the command on so many ranks.
function(tessera_rank_test name ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN})
  set_tests_properties(${name} PROPERTIES PROCESSORS ${ranks} SKIP_RETURN_CODE 77)
  tessera_starts_ranks(${name})
endfunction()

#   tessera_node_test(NAME RANKS RANKS_PER_NODE COMMAND...): the same on pretended nodes.
function(tessera_node_test name ranks ranks_per_node)
  tessera_rank_test(${name} ${ranks} ${ARGN})
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT TESSERA_RANKS_PER_NODE=${ranks_per_node})
endfunction()

#   tessera_test(NAME sources... LINKS libraries... [RANKS n...] [LABELS l...] [OWN_MAIN]): a GoogleTest binary; RANKS runs it under mpiexec. Its sources hold
#   main with RANKS and with OWN_MAIN.
# Tests have no time limits of their own: CMakePresets.json has one for all, against hangs, which no busy machine comes near.
function(tessera_test name)
  cmake_parse_arguments(ARG "OWN_MAIN" "" "LINKS;LABELS;RANKS" ${ARGN})
  add_executable(test_${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(test_${name} PRIVATE ${ARG_LINKS} GTest::gtest)
  set_target_properties(test_${name} PROPERTIES TESSERA_TEST ON)
  if(ARG_RANKS)
    foreach(n ${ARG_RANKS})
      tessera_rank_test(${name}.ranks${n} ${n} $<TARGET_FILE:test_${name}>)
      set_tests_properties(${name}.ranks${n} PROPERTIES LABELS "${ARG_LABELS}")
    endforeach()
  else()
    if(NOT ARG_OWN_MAIN)
      target_link_libraries(test_${name} PRIVATE tessera_test_main)
    endif()
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" SKIP_RETURN_CODE 77)
  endif()
endfunction()

#   tessera_test_folder(NAME LINKS libraries... [PREFIX p] [LABELS l...] [THREADS n] [FILES *_test.cpp... | EXCEPT *_test.cpp...]):
#   test_NAME, one GoogleTest binary of the folder's tests, or of FILES, compiled by two dozen; each file is a test of its own, PREFIX_STEM (NAME_STEM without a
#   PREFIX), which `test_NAME --file STEM_test.cpp` runs. THREADS are those of the kernels that its tests run. Names of a file stand in a namespace of its
#   own, since others are compiled with it. What replaces functions of the whole program, such as operator new, is a tessera_test.
function(tessera_test_folder name)
  cmake_parse_arguments(ARG "" "PREFIX;THREADS" "LINKS;LABELS;FILES;EXCEPT" ${ARGN})
  if(NOT ARG_FILES)
    file(GLOB ARG_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
    list(REMOVE_ITEM ARG_FILES "" ${ARG_EXCEPT})
  endif()
  if(NOT ARG_PREFIX)
    set(ARG_PREFIX ${name})
  endif()
  add_executable(test_${name} ${ARG_FILES})
  target_link_libraries(test_${name} PRIVATE ${ARG_LINKS} GTest::gtest)
  set_target_properties(test_${name} PROPERTIES TESSERA_TEST ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  if(ARG_THREADS)
    target_sources(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/validation/kernel_test_main.cpp)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/validation/kernel_test_main.cpp PROPERTIES COMPILE_DEFINITIONS TESSERA_TEST_THREADS=${ARG_THREADS})
  else()
    target_link_libraries(test_${name} PRIVATE tessera_test_main)
  endif()
  foreach(file ${ARG_FILES})
    string(REGEX REPLACE "_test\\.(cpp|cu)$" "" stem ${file})
    add_test(NAME ${ARG_PREFIX}_${stem} COMMAND test_${name} --file ${file})
    set_tests_properties(${ARG_PREFIX}_${stem} PROPERTIES LABELS "${ARG_LABELS}" SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

#   tessera_on_device(TEST...): the tests run code of the CUDA backend. Label device: scripts/test --emulate runs these, and scripts/test all others.
function(tessera_on_device)
  if(TESSERA_EMULATE)
    set_property(TEST ${ARGN} APPEND PROPERTY LABELS device)
  endif()
endfunction()

# What needs a GPU, or the emulator: tests get label gpu where it is a GPU, and scripts/gpu_check finds them in gpu_tests.json without CTest.
#   tessera_device_test(NAME PATH KIND [RANKS n] [ARGUMENTS...]): KIND is kernels, parity, program, or script (of Python); RANKS are the most that
#   share the GPU, which a script starts itself
function(tessera_device_test name path kind)
  tessera_on_device(${name})
  cmake_parse_arguments(ARG "" "RANKS" "" ${ARGN})
  if(NOT ARG_RANKS)
    set(ARG_RANKS 1)
  endif()
  set(arguments ${ARG_UNPARSED_ARGUMENTS})
  list(TRANSFORM arguments REPLACE "(.+)" "\"\\1\"")
  list(JOIN arguments ", " arguments)
  set_property(GLOBAL APPEND PROPERTY tessera_device_tests
    "{\"name\": \"${name}\", \"kind\": \"${kind}\", \"path\": \"${path}\", \"ranks\": ${ARG_RANKS}, \"arguments\": [${arguments}]}")
  if(TESSERA_CUDA)
    set_property(TEST ${name} APPEND PROPERTY LABELS gpu)
  endif()
endfunction()
function(tessera_list_device_tests)
  get_property(tests GLOBAL PROPERTY tessera_device_tests)
  list(JOIN tests ",\n  " tests)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/gpu_tests.json CONTENT "[\n  ${tests}\n]\n")
  # All that scripts/bundle packs, in one target.
  string(REGEX MATCHALL "TARGET_FILE:[A-Za-z0-9_]+" programs "${tests}")
  list(TRANSFORM programs REPLACE "TARGET_FILE:" "")
  list(REMOVE_DUPLICATES programs)
  add_custom_target(gpu_bundle DEPENDS tessera device_benchmark gpu_smoke ${programs})
endfunction()
