# MPI and HDF5: whatever the site has. Of MPI Tessera uses the C interface of MPI 3 with MPI_THREAD_MULTIPLE, which is asked at the start of a run; of
# HDF5 what a serial build offers, since its ranks write files of their own. A parallel HDF5 serves as well, if it is of the same MPI.

# tessera_ranks_connect(VARIABLE SUFFIX): FALSE if mpiexec.SUFFIX starts two ranks that do not find each other. Ubuntu 24.04's MPICH 4.2.0-5build3 does that
# (bug 2072338 of Launchpad). A launcher that starts nothing here, for example on a login node, proves nothing.
function(tessera_ranks_connect variable mpicc suffix)
  set(${variable} TRUE PARENT_SCOPE)
  set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/mpi_probe)
  file(WRITE ${probe}.c "#include <mpi.h>\n#include <stdio.h>\nint main(int count, char** words) {\n  int size = 0;\n  MPI_Init(&count, &words);\n"
    "  MPI_Comm_size(MPI_COMM_WORLD, &size);\n  printf(\"ranks=%d\\n\", size);\n  return MPI_Finalize();\n}\n")
  execute_process(COMMAND ${mpicc}${suffix} ${probe}.c -o ${probe} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    string(REGEX REPLACE "mpicc$" "mpiexec" mpiexec "${mpicc}")
    execute_process(COMMAND ${mpiexec}${suffix} -n 2 ${probe} OUTPUT_VARIABLE said ERROR_QUIET TIMEOUT 30)
    if(said MATCHES "ranks=1")
      set(${variable} FALSE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Where several MPIs are in one folder, as on Debian (mpicc.mpich, mpicc.openmpi, and mpicc as a link to the one that was installed last), it is
# MPICH, if its ranks connect. MPI_HOME, MPI_C_COMPILER or an mpicc that stands before them on PATH choose another.
if(NOT MPI_C_COMPILER)
  find_program(any_mpicc NAMES mpicc HINTS ${MPI_HOME} ENV MPI_HOME PATH_SUFFIXES bin NO_CACHE)
  if(EXISTS "${any_mpicc}.mpich")
    set(suffix .mpich)
    tessera_ranks_connect(connect ${any_mpicc} .mpich)
    if(NOT connect)
      if(NOT EXISTS "${any_mpicc}.openmpi")
        message(FATAL_ERROR "The MPICH of this system is broken: mpiexec.mpich starts ranks that do not find each other (Ubuntu bug 2072338). "
          "Install Open MPI, which is used instead: apt-get install openmpi-bin libopenmpi-dev")
      endif()
      message(STATUS "The MPICH of this system starts ranks that do not find each other (Ubuntu bug 2072338): Open MPI is used instead")
      set(suffix .openmpi)
    endif()
    set(MPI_C_COMPILER "${any_mpicc}${suffix}" CACHE FILEPATH "mpicc of the MPI to take, a path or a name on PATH" FORCE)
  endif()
elseif(NOT IS_ABSOLUTE "${MPI_C_COMPILER}")
  find_program(named_mpicc NAMES ${MPI_C_COMPILER} HINTS ${MPI_HOME} ENV MPI_HOME PATH_SUFFIXES bin NO_CACHE)
  if(named_mpicc)
    set(MPI_C_COMPILER "${named_mpicc}" CACHE FILEPATH "mpicc of the MPI to take, a path or a name on PATH" FORCE)
  endif()
endif()
# The launcher of that MPI and no other's, and where a parallel HDF5 is named in the same way, that of the same MPI.
string(REGEX MATCH "[^/.]+(\\.[a-z]+)$" suffixed "${MPI_C_COMPILER}")
set(of_mpi "${CMAKE_MATCH_1}")
get_filename_component(folder "${MPI_C_COMPILER}" DIRECTORY)
if(suffixed AND EXISTS "${folder}/mpiexec${of_mpi}")
  set(MPIEXEC_EXECUTABLE "${folder}/mpiexec${of_mpi}" CACHE FILEPATH "Starts the tests' ranks")
endif()
find_program(HDF5_C_COMPILER_EXECUTABLE NAMES h5cc h5pcc${of_mpi} h5pcc NAMES_PER_DIR HINTS ${HDF5_ROOT} ENV HDF5_ROOT PATH_SUFFIXES bin)

find_package(MPI 3.0 QUIET COMPONENTS C)
tessera_need(MPI_C_FOUND "MPI 3 (mpi.h, mpicc)" "mpich libmpich-dev" "mpich, openmpi, ..." "mpich or openmpi")
find_package(HDF5 1.10 QUIET COMPONENTS C)
tessera_need(HDF5_FOUND "HDF5 1.10 or newer (hdf5.h; serial, or parallel of the same MPI)" "libhdf5-dev" "hdf5~mpi" "hdf5")

# Of what its compiler wrapper says, no options of the compiler: those are of MPI's own build.
separate_arguments(mpi_link_flags NATIVE_COMMAND "${MPI_C_LINK_FLAGS}")
add_library(tessera_mpi INTERFACE)
target_include_directories(tessera_mpi SYSTEM INTERFACE ${MPI_C_INCLUDE_DIRS})
target_link_libraries(tessera_mpi INTERFACE ${MPI_C_LIBRARIES})
target_link_options(tessera_mpi INTERFACE ${mpi_link_flags})
# The C++ interface, which MPI 3 no longer has, stays out.
target_compile_definitions(tessera_mpi INTERFACE MPICH_SKIP_MPICXX OMPI_SKIP_MPICXX)

# A shared HDF5 brings what it needs itself; its compiler wrapper names all of that for static ones.
set(hdf5_libraries ${HDF5_C_LIBRARIES})
if("${hdf5_libraries}" MATCHES "libhdf5[^/;]*[.]so")
  list(FILTER hdf5_libraries INCLUDE REGEX "libhdf5[^/]*[.]so")
endif()
add_library(tessera_hdf5 INTERFACE)
target_include_directories(tessera_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS} ${HDF5_INCLUDE_DIRS})
target_link_libraries(tessera_hdf5 INTERFACE ${hdf5_libraries})
if(HDF5_IS_PARALLEL) # then hdf5.h includes mpi.h
  target_link_libraries(tessera_hdf5 INTERFACE tessera_mpi)
endif()

# tessera_dynamic(VARIABLE TAG LIBRARY): the names that a shared library has under SONAME (its own) or NEEDED (those it asks for).
function(tessera_dynamic variable tag library)
  execute_process(COMMAND ${CMAKE_READELF} -d ${library} OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "\\(${tag}\\)[^[]*\\[[^]]+" lines "${text}")
  list(TRANSFORM lines REPLACE ".*\\[" "")
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

# A parallel HDF5 that was built with another MPI links and then fails in ways that name neither.
if(HDF5_IS_PARALLEL AND MPI_C_FOUND AND hdf5_libraries MATCHES "^/.*[.]so$" AND CMAKE_READELF)
  set(ours)
  foreach(library ${MPI_C_LIBRARIES})
    tessera_dynamic(name SONAME ${library})
    list(APPEND ours ${name})
  endforeach()
  tessera_dynamic(needed NEEDED ${hdf5_libraries})
  list(FILTER needed INCLUDE REGEX "^lib[a-z]*mpi")
  foreach(name ${needed})
    if(ours AND NOT name IN_LIST ours)
      tessera_missing("HDF5 of this MPI: ${hdf5_libraries} asks for ${name}, and ${MPI_C_COMPILER} links ${ours}. A serial HDF5 goes with every MPI (HDF5_ROOT names one)"
        "libhdf5-dev" "hdf5~mpi" "hdf5")
    endif()
  endforeach()
endif()

set(TESSERA_OPEN_MPI FALSE)
if(EXISTS "${MPI_C_HEADER_DIR}/mpi.h")
  file(STRINGS "${MPI_C_HEADER_DIR}/mpi.h" mark REGEX "define OPEN_MPI +1")
  if(mark)
    set(TESSERA_OPEN_MPI TRUE)
  endif()
endif()
