#!/usr/bin/env bash
# Everything worth measuring on a GPU, into a folder of results that names the device in each file:
# the tests that a device could break, steps beside peers and by themselves, the noise's law and time,
# the MNIST MLP column of Table 2.
#
#   benchmarks/on_gpu.sh [FOLDER] [PART ...]      parts: tests throughput device noise table2
#
# With JAX_PLATFORMS=cpu a small version of it runs on a CPU, to see that it works. Table 2 reads the
# folder in JAXMINIMAX_DATA; peers of the throughput are found by the variables that it names.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:-build/on_gpu}"
shift || true
parts=("${@:-tests throughput device noise table2}")
mkdir -p "$folder"
read -r -a parts <<< "${parts[*]}"

if [ "${JAX_PLATFORMS:-}" = cpu ]; then
  quick=(--quick) draws=(--draws 2e6 --quick) column=(--epsilon 1 --seeds 1)
else
  python -c 'import jax; assert jax.default_backend() != "cpu", "no device: set JAX_PLATFORMS=cpu"'
  quick=() draws=(--draws 1e10) column=()
fi

for part in "${parts[@]}"; do
  printf '== %s\n' "$part"
  case "$part" in
    tests) python -m pytest -q -m 'gpu and not slow' ;;
    throughput) python -m benchmarks.speed.throughput "${quick[@]}" --cores 0 \
        --json "$folder/throughput.json" --markdown "$folder/throughput.md" \
        --plot "$folder/throughput.png" ;;
    device) python -m benchmarks.speed.device "${quick[@]}" --json "$folder/device.json" ;;
    noise) python -m benchmarks.privacy.noise_law "${draws[@]}" --json "$folder/noise_law.json" ;;
    table2) python -m benchmarks.published.table2 --datasets mnist --methods mlp \
        --readings honest --delta 1e-6 "${column[@]}" --json "$folder/table2_mnist_mlp.json" ;;
    *) printf 'no part %q: tests, throughput, device, noise or table2\n' "$part" >&2; exit 2 ;;
  esac
done
