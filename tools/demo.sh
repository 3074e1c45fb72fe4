#!/bin/sh
# The tour of mpicoll: look at one all-reduce algorithm, train with it on real digits, compare it
# with others. Expects mpirun and mpicoll on PATH, as `make demo` puts them.
set -eu
cd "$(dirname "$0")/.."
mkdir -p results/demo

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

# As many ranks as cores: with more, times would show how the cores are shared. One sends nothing.
ranks=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
[ "$ranks" -le 4 ] || ranks=4
[ "$ranks" -ge 2 ] || ranks=2

# Behind mpirun's pipes the program cannot see that a person is watching.
progress=--no-progress; [ -t 2 ] && progress=--progress
say mpicoll show allreduce ring -P "$ranks"
say mpirun -n "$ranks" mpicoll train mnist5k --dtype float64 --algorithm ring "$progress" --compare
rm -f results/demo/allreduce.jsonl results/demo/allreduce.html
# Its last three lines are the result.
say mpirun -n "$ranks" mpicoll bench allreduce \
    --algorithms linear,parameter_server,ring,double_binary_tree,native -b 8 -e 4M --budget 60 \
    -J results/demo/allreduce.jsonl --html results/demo/allreduce.html
