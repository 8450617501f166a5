#!/bin/sh
# Leaves a ready virtual environment in $1, with the locked dependencies, the package itself, a Java runtime to run on, and
# tesseract, which one of the examples reads images with.
set -eu
unset PYTHONDONTWRITEBYTECODE # what is compiled here is kept, for all that start later
venv=${1:-.venv}
python=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "Python 3.11 or newer is needed; '$python' is $("$python" --version 2>&1 || echo missing). Name one with PYTHON=..."

# Runs its arguments as root, or says what to run by hand.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo "$@"
    else return 1
    fi
}

install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    as_root env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -q && apt-get install -yq --no-install-recommends $*" >&2
}

java_major() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

major=$(java_major || true)
if [ "${major:-0}" -lt 17 ]; then
    say "no Java 17 or newer found; installing one with the system's package manager"
    install openjdk-17-jre-headless || install default-jre-headless ||
        fail "Java 17 or newer is needed and may not be installed from here: run 'apt-get install openjdk-17-jre-headless' as root"
fi

if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    say "this Python cannot make virtual environments; installing the system's venv package"
    install python3-venv || fail "the Python module venv is missing: run 'apt-get install python3-venv' as root"
    "$python" -m venv "$venv"
fi

if ! command -v tesseract >/dev/null 2>&1; then
    say "no tesseract found; installing it with the system's package manager"
    # Only one example and its tests need it: without it all the rest is ready.
    install tesseract-ocr ||
        say "tesseract may not be installed from here, and 'make demo-manufacturing' needs it: run 'apt-get install tesseract-ocr' as root"
fi

say "installing the locked dependencies into $venv"
# The lock is complete, so that nothing is left to resolve, and three installations go on side by side: pip itself fetches, unpacks
# and compiles one package after the other. PySpark comes as source with 400 MB of jars, of which a wheel is made that compresses
# them no more.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v to="$work" '
    /^[a-z]/ { part = $1 ~ /^setuptools==/ ? "tools" : $1 ~ /^pyspark==/ ? "pyspark" : "rest" ++count % 2 }
    { print > (to "/" part) }' requirements.lock
locked() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes "$@"; }
locked -r "$work/tools"
locked --use-pep517 --no-build-isolation --config-settings=--build-option=--compression=stored -r "$work/pyspark" &
pyspark=$!
locked -r "$work/rest0" &
half=$!
locked -r "$work/rest1"
wait "$half"
wait "$pyspark"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable papers
say "compiling the simulator's inner loops, and archiving the Java classes that hosts load, once: they start in half the time then"
"$venv/bin/python" scripts/compile_loops.py &
loops=$!
"$venv/bin/python" scripts/archive_classes.py || say "that failed, and hosts start slower than they could"
wait "$loops"
say "ready: $venv/bin/elastream"
