#!/usr/bin/env bash
# h200-sglang, trial 0: today's settings, kept
# No advice: only today's settings were measured. No other settings gave a measurement to compare with.
# measured: ttft_p50 1,891 ms [1,600 ms, 2,080 ms]; baseline 1,891 ms [1,600 ms, 2,080 ms]
# measured: ttft_p95 2,874 ms [2,763 ms, 3,327 ms]; baseline 2,874 ms [2,763 ms, 3,327 ms]
# measured: tpot_p50 271 ms [259.3 ms, 310.5 ms]; baseline 271 ms [259.3 ms, 310.5 ms]
# engine: sglang (version unknown)
# model: /tmp/model, revision not pinned
# machine: 2 x NVIDIA H200, driver 580.159.04
# date: 2026-11-29T23:09:48+00:00; autotune 0.1.0; workload rag-long.jsonl 4b8105971f9f5313
# differs from the measured launch: listen address and port (HOST, PORT)
# check it: autotune verify S
# go back: rollback.sh
# generated; edits are not kept by `autotune script`

set -euo pipefail

HOST="${HOST:-127.0.0.1}"  # 0.0.0.0 to be reached from outside
PORT="${PORT:-8000}"

if ! command -v -- python3 >/dev/null; then
  echo "${0##*/}: command not found:" python3 >&2
  exit 127
fi

export CUDA_HOME=/usr/local/cuda
export CUDA_VERSION=13.0.2
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NCCL_VERSION=2.28.3-1
export TORCH_CUDA_ARCH_LIST=9.0a
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export PYTHONPATH=/tmp/sgl-site:/tmp/sgl-extra
export CUDA_VISIBLE_DEVICES=0

cmd=(
  python3
  -m
  sglang.launch_server
  --model-path
  /tmp/model
  --host
  "$HOST"
  --port
  "$PORT"
  --enable-metrics
  --load-format
  dummy
  --served-model-name
  m
  --context-length
  32768
  --attention-backend
  triton
  --sampling-backend
  pytorch
  --grammar-backend
  none
  --mem-fraction-static
  0.85
  --disable-piecewise-cuda-graph
)

exec "${cmd[@]}" "$@"
