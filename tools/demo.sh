#!/bin/sh
# The tour of mpicoll: train on real digits, compare all-reduce algorithms, look at one.
# Expects mpirun and mpicoll on PATH, as `make demo` puts them.
set -eu
cd "$(dirname "$0")/.."
mkdir -p results/demo

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

# Behind mpirun's pipes the program cannot see that a person is watching.
progress=--no-progress; [ -t 2 ] && progress=--progress
say mpirun -n 4 mpicoll train mnist5k --dtype float64 --algorithm ring $progress
rm -f results/demo/allreduce.jsonl results/demo/allreduce.html
say mpirun -n 4 mpicoll bench allreduce \
    --algorithms linear,parameter_server,ring,double_binary_tree,native -b 8 -e 4M --budget 60 \
    -J results/demo/allreduce.jsonl --html results/demo/allreduce.html
say mpicoll show allreduce ring -P 4
printf '\nresults/demo/allreduce.html has the plot, results/demo/allreduce.jsonl the numbers.\n'
