# Aurora at ALCF, after its public documentation; nobody has run these scripts there. Its GPUs are Intel's, which Tessera does not compute on: ranks run on
# the two processors of a node, whose cores 0 and 52 are the system's:
#   qsub -A PROJECT -q prod -l select=32 -l walltime=06:00:00 -l filesystems=flare -v TESSERA_SITE=aurora,DECK=mine.toml pbs/train.pbs
# prod takes up to 512 nodes for 6 h, up to 1,024 for 12 h, up to 1,919 for 18 h, more for 24 h; debug 1 or 2 for 1 h. Submit from the project's folder.
export TESSERA_PPN=${TESSERA_PPN:-2}
export TESSERA_MPIEXEC=${TESSERA_MPIEXEC:-"mpiexec --cpu-bind list:1-51:53-103"}
if command -v module >/dev/null; then module load hdf5; fi
