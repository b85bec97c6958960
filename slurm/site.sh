# Settings of this site, for every job script in this folder. All of them are optional: uncomment what your cluster needs. Of several sites each has a
# file of its own, site/NAME.sh, and TESSERA_SITE=NAME takes it in the place of this one.
# The scripts source this file on the compute nodes, after sbatch has read its own options; so that sbatch sees its part as well, source
# it before you submit:   . slurm/site.sh; sbatch slurm/train_70b.sh

# Account and partition (sbatch reads these from the environment; --account and --partition on its command line win).
# export SBATCH_ACCOUNT=my_project
# export SBATCH_PARTITION=gpu

# The MPI and HDF5 that tessera was built with.
# module load mpich hdf5

# How srun and that MPI find each other: `srun --mpi=list` lists what there is. pmi2 (for MPICH and its descendants) unless this says otherwise.
# export SLURM_MPI_TYPE=pmix   # Open MPI
# export SLURM_MPI_TYPE=cray_shasta   # Cray MPICH
# Options of srun beside those that the scripts give.
# export TESSERA_SRUN="--cpu-bind=cores"

# The program, when it is neither installed with these scripts, nor on PATH, nor in build/host.
# export TESSERA=$HOME/tessera/build/host/tessera
# A container that has it: a .sif file for Apptainer (with the GPUs, --nv), any other image for Pyxis (--container-image).
# export TESSERA_CONTAINER=$HOME/tessera.sif
# export TESSERA_CONTAINER=registry#tessera:latest
# export TESSERA_MOUNTS=/data,/scratch   # that the container sees, beside the folder of the job

# Network of a site with several of them: the interface that MPI (UCX) uses. docs/nccl.md has what NCCL takes.
# export UCX_NET_DEVICES=mlx5_0:1
