#!/usr/bin/env bash
# Tests and measures on a machine with a GPU, python3 with PyTorch, and CUDA, but without cargo or a network.
#
#     on_a_gpu.sh FOLDER OUT [PART...]
#
# FOLDER is what pack_for_gpu.sh made, unpacked. OUT gets results.jsonl, summary.txt, kernels-*.txt and logs.tar.gz. Parts run in the order of
# gpu_run.py, which lists them with --help; all by default, as far as the time goes.
# DEVICE (cuda) is the device of `bridge`; another one than cuda gets tiny sizes, to see that the parts run. TOTAL (470) is the most that all parts
# take, in seconds. PYTHON (python3) has PyTorch.
set -euo pipefail
if (( $# < 2 )); then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
folder=$1 out=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/gpu_run.py" --device "${DEVICE:-cuda}" --total "${TOTAL:-470}" "$folder" "$out" "$@"
