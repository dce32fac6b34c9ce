#!/usr/bin/env bash
# A container image that runs vLLM's CPU build, made without a registry:
#   image.sh TAG VENV
# A minimal Debian root with the libraries that Python and torch need, the virtual environment of
# setup.sh and the Python it was made from, each at its own path, and `vllm` on the PATH. Two minutes
# and 4 GB; does nothing if the image is there. The model is mounted by whoever runs it.
# Needs root, a Docker daemon, debootstrap and access to a Debian mirror.
set -euo pipefail

suite=${SUITE:-bookworm}
packages=(libsqlite3-0 libssl3 libffi8 libbz2-1.0 liblzma5 zlib1g libreadline8 libncursesw6
  libnuma1 libgomp1 libstdc++6 libtcmalloc-minimal4 ca-certificates)

if [ $# -ne 2 ]; then
  echo "usage: $0 TAG VENV" >&2
  exit 2
fi
tag=$1
for program in docker debootstrap chroot; do
  command -v "$program" >/dev/null || { echo "image: $program is missing" >&2; exit 1; }
done
docker info >/dev/null 2>&1 || { echo "image: no Docker daemon answers" >&2; exit 1; }
if docker image inspect "$tag" >/dev/null 2>&1; then
  echo "image: $tag is there already" >&2
  exit 0
fi
[ "$(id -u)" = 0 ] || { echo "image: debootstrap needs root" >&2; exit 1; }
venv=$(cd "$2" && pwd -P)
python=$("$venv/bin/python" -c 'import sys; print(sys.base_prefix)')
folders=("${venv#/}")
case $python in
  /usr) packages+=(python3) ;;  # the suite must then be the one that this host runs
  *) folders+=("${python#/}") ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { "$@" >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }; }

run debootstrap --variant=minbase "$suite" "$work/root"
run chroot "$work/root" apt-get install -y -qq --no-install-recommends "${packages[@]}"
rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists"
ln -s "$venv/bin/vllm" "$work/root/usr/local/bin/vllm"
tar -c -C "$work/root" . -C / --exclude='__pycache__' "${folders[@]}" | docker import \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$tag" >/dev/null
echo "image: made $tag" >&2
