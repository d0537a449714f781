#!/usr/bin/env bash
# Builds what on_a_gpu.sh needs, on a machine without a GPU: the stripped binary, the executables of the device tests, and the programs that measure.
#
#     pack_for_gpu.sh FOLDER
#
# FOLDER is made anew, and FOLDER.tar.xz of it, below MOST_MIB if that is given. DEVICE (cuda) is the feature to build with; `flex` builds without
# one, and without tests, for a trial of on_a_gpu.sh on the CPU. FEATURES are further ones (bridge-kernels/NAME, separated by commas). TESTS ("kernels runs")
# are the executables of tests to take along: leave one out where the limit is exceeded.
set -euo pipefail
(( $# == 1 )) || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
most_mib=${MOST_MIB:-}
device=${DEVICE:-cuda}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(realpath -m "$1")
cd "$here/.."
target=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')

# The selections and features of `cargo xtask test --device`, so that one build serves both.
features=()
if [[ $device != flex ]]; then
    features=(--features "bridge-cli/$device,bridge-tests/$device${FEATURES:+,$FEATURES}")
fi
if [[ -e $folder && ! -e $folder/COMMIT ]]; then
    echo "$folder: it is there, and was not made by this program" >&2
    exit 2
fi
cargo build --release --workspace --bins "${features[@]}"
rm -rf "$folder"
mkdir -p "$folder"/{tests,sources/recipes,lib/no_cublaslt}
strip -s -o "$folder/bridge" "$target/release/bridge"
if [[ $device != flex ]]; then
    cargo test --release --workspace "${features[@]}" --test device --no-run --message-format json-render-diagnostics |
        python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "device":
        print("kernels" if "bridge-kernels" in message["target"]["src_path"] else "runs", message["executable"])
' | while read -r name path; do
        [[ " ${TESTS-kernels runs} " != *" $name "* ]] || strip -s -o "$folder/tests/$name" "$path"
    done
fi
cp recipes/tiny.toml "$folder/sources/recipes/"
cp benchmarks/{on_a_gpu.sh,gpu_run.py,peer_torch.py,kernel_times.py} "$folder/"
# In front of cuBLASLt: a library that has none of its functions, so that products are Burn's.
echo | cc -shared -fPIC -x c - -o "$folder/lib/no_cublaslt/libcublasLt.so"
git describe --always --dirty >"$folder/COMMIT"

tar -C "$folder" -cf - . | xz -T0 -6 >"$folder.tar.xz"
mib=$(( ($(stat -c %s "$folder.tar.xz") + (1 << 20) - 1) >> 20 ))
du -ah "$folder" | sort -h | tail -8
echo "$folder.tar.xz: $mib MiB"
if [[ -n $most_mib ]] && (( mib >= most_mib )); then
    echo "it is to be below $most_mib MiB" >&2
    exit 1
fi
