#!/bin/bash
# Two machines of four GPUs on Slurm. NOT RUN: no such cluster was at hand; adapt partition, times and paths.
#
#   sbatch launch/slurm.sh
#
# A job that is stopped or killed resumes when it is submitted again: the folder holds its state.
#SBATCH --job-name=tapnet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@60
set -euo pipefail

RUN=${RUN:-runs/cluster} # on a file system that all machines see
LAYOUT=(--devices 4 --num-nodes 2 --strategy ddp --precision bf16)

if [ -e "$RUN/last.safetensors" ]; then
    exec srun tapnet train --resume "$RUN" "${LAYOUT[@]}"
fi
exec srun tapnet train quickdraw --out "$RUN" --set training.meta_batch=8 "${LAYOUT[@]}"
