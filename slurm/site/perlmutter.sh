# Perlmutter at NERSC, after its public documentation; nobody has run these scripts there. GPU nodes have 4 A100 and a processor of 64 cores:
#   export TESSERA_SITE=perlmutter; . slurm/site/perlmutter.sh; sbatch --nodes=16 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32 slurm/train_70b.sh
# export SBATCH_ACCOUNT=my_project_g
export SBATCH_QOS=${SBATCH_QOS:-regular} SBATCH_CONSTRAINT=${SBATCH_CONSTRAINT:-gpu}
export SLURM_MPI_TYPE=cray_shasta                 # Cray MPICH
export TESSERA_SRUN="--cpu-bind=cores ${TESSERA_SRUN:-}"
if command -v module >/dev/null; then module load PrgEnv-gnu cudatoolkit cray-hdf5-parallel; fi
export NCCL_SOCKET_IFNAME=hsn                     # the Slingshot adapters, for NCCL's start; its plugin for libfabric carries the rest
