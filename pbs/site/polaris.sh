# Polaris at ALCF, after its public documentation; nobody has run these scripts there. A node has 4 A100 of 40 GB and a processor of 32 cores:
#   qsub -A PROJECT -q prod -l select=16:system=polaris -l walltime=06:00:00 -l filesystems=home:eagle -v TESSERA_SITE=polaris,DECK=mine.toml pbs/train.pbs
# prod takes 10 to 496 nodes: up to 24 for 3 h, up to 99 for 6 h, more for 24 h. preemptable takes up to 10 for 72 h, and kills a job without a word when
# somebody needs its nodes; "#PBS -r y" then starts it again, from the last checkpoint: save often (checkpoint.every).
export TESSERA_PPN=${TESSERA_PPN:-4}
export TESSERA_MPIEXEC=${TESSERA_MPIEXEC:-"mpiexec --depth=8 --cpu-bind depth"}
if command -v module >/dev/null; then module use /soft/modulefiles; module load PrgEnv-gnu cudatoolkit-standalone cray-hdf5-parallel; fi
# NCCL over Slingshot: the plugin for libfabric, and what ALCF found best with it. Where a run hangs in NCCL, unset these four first.
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1
export LD_LIBRARY_PATH=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
