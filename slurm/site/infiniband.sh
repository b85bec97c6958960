# A cluster of nodes with 8 GPUs and as many InfiniBand adapters (a DGX or HGX SuperPOD), as an example of what such a site sets. docs/nccl.md says why.
#   export TESSERA_SITE=infiniband; . slurm/site/infiniband.sh; sbatch slurm/train_70b.sh
# export SBATCH_ACCOUNT=my_project SBATCH_PARTITION=gpu
export NCCL_IB_HCA=mlx5                           # InfiniBand adapters alone, where a node has Ethernet ones of the same maker: "=mlx5_0,mlx5_1" names them
export NCCL_SOCKET_IFNAME=^lo,docker              # the interface by which NCCL starts
export UCX_TLS=rc,sm,self UCX_NET_DEVICES=all     # MPI over InfiniBand
export TESSERA_SRUN="--cpu-bind=cores ${TESSERA_SRUN:-}"
