#!/usr/bin/env bash
# Installs what image.txt names, of the versions and with the hashes that requirements.txt pins, into a folder, for the
# Python of the PyTorch image: 130 MB to download. PyTorch itself is Debian's.
#
#     hack/frameworks/image.sh FOLDER 3.13
set -euo pipefail
folder=$(realpath -m "${1:?usage: hack/frameworks/image.sh FOLDER VERSION}")
version=${2:?usage: hack/frameworks/image.sh FOLDER VERSION}
cd "$(dirname "$0")/../.."

python3 -m pip --version >/dev/null || { echo "python3 has no pip, with which the frameworks are installed: run 'make deps'" >&2; exit 1; }
# Lines of requirements.txt whose package is in a list (a file with a name on each line).
pins() {
	awk 'NR == FNR { if (/^[a-z]/) named[$1]; next } /^[a-z]/ { split($1, pin, "=="); wanted = pin[1] in named } wanted' \
		"$1" hack/frameworks/requirements.txt
}
pip=(python3 -m pip --quiet --disable-pip-version-check --no-cache-dir)
# Whether this machine's Python could run them is no matter.
"${pip[@]}" install --root-user-action ignore --no-deps --no-compile --ignore-requires-python --target "$folder" \
	--python-version "$version" --implementation cp --only-binary :all: --require-hashes \
	-r <(pins <(grep -v '^deepspeed$' hack/frameworks/image.txt))

# DeepSpeed is published as source alone. Without its kernels it is Python and nothing else, for any version.
wheels=$(mktemp -d)
trap 'rm -rf --one-file-system "$wheels"' EXIT
PYTHONPATH=$(hack/tools/pip.sh setuptools hack/package/requirements.txt) DS_BUILD_OPS=0 "${pip[@]}" wheel --no-deps --no-build-isolation \
	--require-hashes --wheel-dir "$wheels" -r <(pins <(echo deepspeed))
# Beside the others: a folder that pip finds already is passed over with a warning.
"${pip[@]}" install --root-user-action ignore --no-deps --no-compile --ignore-requires-python --target "$folder" --upgrade "$wheels"/deepspeed-*-py3-none-any.whl
# Its communication in shared memory would be compiled by each pod, which has no compiler: as on other systems than Linux, where it
# does without, it is said not to be there.
op=$folder/deepspeed/ops/op_builder/cpu/comm.py
[ "$(grep -c "if sys.platform != 'linux':" "$op")" = 1 ] || { echo "$op is not as it was: look for what has DeepSpeed do without this op" >&2; exit 1; }
sed -i "s/if sys.platform != 'linux':/if True:/" "$op"
# Their commands name this machine's Python.
rm -r "$folder/bin"
