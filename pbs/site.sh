# Settings of this site, for pbs/train.pbs. All of them are optional: uncomment what your cluster needs. Of several sites each has a file of its own,
# site/NAME.sh, and TESSERA_SITE=NAME takes it in the place of this one.

# The MPI and HDF5 that tessera was built with.
# module load mpich hdf5

# The launcher and its options; the script adds -n, --ppn and --hostfile.
# export TESSERA_MPIEXEC="mpiexec --cpu-bind depth --depth=8"
# Ranks of a node, where PBS names each node once: as many as it has GPUs.
# export TESSERA_PPN=8

# The program, when it is neither installed with these scripts, nor on PATH, nor in build/host; or a container that has it.
# export TESSERA=$HOME/tessera/build/host/tessera
# export TESSERA_CONTAINER=$HOME/tessera.sif
