# Settings of this site, for every job script in this folder. All of them are optional: uncomment what your cluster needs.
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

# The program, when it is neither installed with these scripts, nor on PATH, nor in build/host.
# export TESSERA=$HOME/tessera/build/host/tessera

# Network of a site with several of them: the interface that MPI (UCX) uses.
# export UCX_NET_DEVICES=mlx5_0:1
