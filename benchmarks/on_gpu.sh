#!/usr/bin/env bash
# Everything worth measuring on a GPU, into a folder of results that names the device in each file.
#
#   benchmarks/on_gpu.sh [FOLDER] [PART ...]      without parts: all of the plan below, in its order
#
# A part runs for 8 minutes at most (LIMIT, in seconds) and writes after every cell, so that the
# same command goes on where a part was stopped. A part that fails stops no other; FOLDER/parts.txt
# says how each ended. Compiled programs are kept in FOLDER/programs: seconds of compilation in a
# file are those of programs that were not there yet. Products of all peers have all digits of
# float32, as in the library's sums.
#
# With JAX_PLATFORMS=cpu a small version of it runs on a CPU, to see that it works. Table 2 reads the
# folder in JAXMINIMAX_DATA; peers of the throughput are found by the variables that it names.
set -uo pipefail
cd "$(dirname "$0")/.."

plan="\
roofline     8  steps of every model beside the times that were predicted for them
device       8  microseconds, kernels and loops of a step of every workload, by itself
linear       6  steps of linear models compared with peers
mlp          8  steps of the MLP compared with peers
cnn          8  steps of the CNN and of attention compared with peers
noise        4  the law of the integer noise by 1e9 draws, and its time
tests        8  what the arithmetic of another device could break
deep         8  steps of the recurrent, low-rank and residual models compared with peers
table2       8  the MNIST MLP column of Table 2 at epsilon 1"
names="$(cut -d ' ' -f 1 <<< "$plan" | paste -s -d ' ')"

folder="${1:-build/on_gpu}"
shift || true
read -r -a parts <<< "${*:-$names}"
for part in "${parts[@]}"; do
  [[ " $names " == *" $part "* ]] || { printf 'no part %q: %s\n' "$part" "$names" >&2; exit 2; }
done
mkdir -p "$folder/tests" || exit 1

if [ "${JAX_PLATFORMS:-}" = cpu ]; then
  quick=(--quick) draws=(--draws 2e6 --quick) column=(--epsilon 1 --seeds 1) large=()
else
  python -c 'import jax; assert jax.default_backend() != "cpu", "no device: set JAX_PLATFORMS=cpu"' \
    || exit 1
  quick=() draws=(--draws 1e9) column=(--epsilon 1 --seeds 3)
  large=(--batches 1024 16384 256 65536 --longest 1)
fi
export JAX_DEFAULT_MATMUL_PRECISION=highest
export JAX_COMPILATION_CACHE_DIR="$(cd "$folder" && pwd)/programs"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1

# what is left of the time of a part
in_time() { timeout "$((began + ${LIMIT:-480} - SECONDS))" python -m "$@"; }

throughput() {
  [ ${#quick[@]} = 0 ] || set -- "$1"
  in_time benchmarks.speed.throughput "${quick[@]}" --cores 0 --only "$@" \
    --json "$folder/throughput.json" --markdown "$folder/throughput.md" \
    --plot "$folder/throughput.png"
}

# file by file: what has passed or failed is not run again
device_tests() {
  local bad=0 file log
  for file in $(python -c 'from tests import conftest; print(*conftest.DEVICE)'); do
    log="$folder/tests/${file//\//.}.txt"
    if [ ! -e "$log" ]; then
      in_time pytest -q -m 'gpu and not slow' "tests/$file.py" > "$log.part" 2>&1
      [ $? = 124 ] && return 124
      mv "$log.part" "$log"
    fi
    tail -n 1 "$log"
    grep -q ' failed' "$log" && bad=1
  done
  return $bad
}

printf 'minutes at most, of parts that can be run alone:\n%s\n' "$plan"
worst=0
for part in "${parts[@]}"; do
  printf '== %s\n' "$part"
  began=$SECONDS
  case "$part" in
    roofline) in_time benchmarks.speed.roofline "${quick[@]}" "${large[@]}" --measure \
      --json "$folder/roofline.json" ;;
    device) in_time benchmarks.speed.device "${quick[@]}" --json "$folder/device.json" ;;
    linear) throughput "linear 22" "linear 784" ;;
    mlp) throughput mlp ;;
    cnn) throughput cnn attention ;;
    deep) throughput rnn lora resnet ;;
    noise) in_time benchmarks.privacy.noise_law "${draws[@]}" --json "$folder/noise_law.json" ;;
    tests) device_tests ;;
    table2) in_time benchmarks.papers.table2 --datasets mnist --methods mlp \
      --readings honest --delta 1e-6 "${column[@]}" --json "$folder/table2_mnist_mlp.json" ;;
  esac
  status=$?
  case "$status" in
    0) ended="done" ;;
    124) ended="stopped, the same command goes on" ;;
    *) ended="failed with status $status" worst=1 ;;
  esac
  printf '%s: %s after %s seconds\n' "$part" "$ended" "$((SECONDS - began))" \
    | tee -a "$folder/parts.txt"
done
exit $worst
