#!/bin/sh
# Proves and measures the CUDA backend on a machine that has an NVIDIA GPU and no Rust.
#
#   tests/gpu/check.sh pack OUT.tar.gz [--nvrtc DIR]     here: builds, and packs what `run` needs; DIR has libnvrtc.so.*
#   sh check.sh run [OPTIONS]                            there, in the unpacked folder
#
# Options of `run`:
#   --json FILE      where the results of the tests and the numbers go (results.json)
#   --models A,B     the models that are measured, in this order (all: xception, resnet50, mini_googlenet, then the others)
#   --batch ROWS     rows of a batch that is measured (64)
#   --repeat R       runs of which the median counts (20)
#   --bytes BYTES    bytes of the copy that is measured (1073741824)
#   --product SIZE   rows and columns of the backend's own matrix product that is measured (4096)
#   --limit SECONDS  how long tests and measurements may take together (480), of which two thirds are for the tests; what
#                    was found by then is kept. All ends within a minute more
#   --tests FILTER   only the tests whose names contain this
#   --no-tests       only the measurements
#   --no-bench       only the tests
#   --fake DIR       no GPU: the fake driver in DIR, libcuda.so, which proves this script and measures nothing
#
# A table comes last: each test, the ceilings, each model. A floor is the time that the bytes of a kernel take at the rate
# of one that copies, or its operations at the rate of the matrix product of Python's torch, where that is there, and of
# the backend's own elsewhere; the table and the file say which. There is one for f32 and one for bf16. Beside what was
# measured stands the time that tests/gpu/expect expects of this GPU.
#
# The exit status is 0 if all is right and measured, 3 if all that ran is right and time ran out before all was measured,
# and 1 after any error: a test that failed or did not end in time, a model that could not be measured.
#
# NVRTC is taken from FANWISE_NVRTC, from the pack, from a toolkit (CUDA_HOME, CUDA_PATH, /usr/local/cuda*), from
# Python's packages, or from the library path.
set -eu

here=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "error: $*" >&2
    exit 1
}

pack() {
    [ $# -ge 1 ] || fail "pack takes a file to write"
    out=$1
    shift
    nvrtc=
    while [ $# -gt 0 ]; do
        case $1 in
            --nvrtc) nvrtc=${2:?--nvrtc takes a folder}; shift 2 ;;
            *) fail "pack does not know $1" ;;
        esac
    done
    case $out in /*) ;; *) out=$PWD/$out ;; esac
    case $nvrtc in ''|/*) ;; *) nvrtc=$PWD/$nvrtc ;; esac
    if [ -n "$nvrtc" ]; then
        for name in libnvrtc libnvrtc-builtins; do
            set -- "$nvrtc/$name.so."*
            [ -e "$1" ] || fail "--nvrtc: $nvrtc has no $name.so.*"
        done
    fi
    root=$(cd "$here/../.." && pwd)
    cd "$root"
    cargo build --release --bin fanwise
    device=$(cargo test --release --test device --no-run --message-format json \
        | sed -n 's/.*"name":"device".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [ -x "$device" ] || fail "the device test binary was not built"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    folder=$work/fanwise-gpu
    mkdir "$folder"
    cp "${CARGO_TARGET_DIR:-target}/release/fanwise" "$folder/fanwise"
    cp "$device" "$folder/device"
    strip "$folder/fanwise" "$folder/device"
    cp "$here/check.sh" "$here/ceilings.py" "$folder"
    git rev-parse HEAD > "$folder/commit" 2>/dev/null || echo unknown > "$folder/commit"
    # The newest of the C library's versions that the binaries ask for.
    grep -a -o -h 'GLIBC_[0-9.]*[0-9]' "$folder/fanwise" "$folder/device" | sort -u -V | tail -n 1 > "$folder/glibc"
    if [ -n "$nvrtc" ]; then
        mkdir "$folder/nvrtc"
        for library in "$nvrtc"/libnvrtc.so.* "$nvrtc"/libnvrtc-builtins.so.*; do
            case $library in
                *.alt.*) ;;
                *) cp "$library" "$folder/nvrtc" ;;
            esac
        done
    fi
    tar -C "$work" -czf "$out" fanwise-gpu
    ls -l "$out"
}

# The folder of NVRTC, if it is not on the library path.
find_nvrtc() {
    if [ -n "${FANWISE_NVRTC:-}" ]; then
        echo "$FANWISE_NVRTC"
    elif [ -d "$here/nvrtc" ]; then
        echo "$here/nvrtc"
    else
        for toolkit in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
            for folder in "$toolkit"/lib64 "$toolkit"/targets/*/lib; do
                for library in "$folder"/libnvrtc.so*; do
                    if [ -n "$toolkit" ] && [ -e "$library" ]; then
                        echo "$folder"
                        return
                    fi
                done
            done
        done
        command -v python3 > /dev/null || return 0
        python3 - <<'PYTHON'
import glob, site, sysconfig
folders = [sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()]
for folder in folders:
    for pattern in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
        found = glob.glob(f"{folder}/{pattern}/libnvrtc.so*")
        if found:
            print(f"{folder}/{pattern}")
            raise SystemExit
PYTHON
    fi
}

run() {
    json=results.json limit=480 filter= tests=yes bench=yes fake=
    models=all batch=64 repeat=20 bytes=1073741824 product=4096
    while [ $# -gt 0 ]; do
        case $1 in
            --json) json=${2:?}; shift 2 ;;
            --models) models=${2:?}; shift 2 ;;
            --batch) batch=${2:?}; shift 2 ;;
            --repeat) repeat=${2:?}; shift 2 ;;
            --bytes) bytes=${2:?}; shift 2 ;;
            --product) product=${2:?}; shift 2 ;;
            --limit) limit=${2:?}; shift 2 ;;
            --tests) filter=${2:?}; shift 2 ;;
            --no-tests) tests=; shift ;;
            --no-bench) bench=; shift ;;
            --fake) fake=$(cd "${2:?}" && pwd); shift 2 ;;
            *) fail "run does not know $1" ;;
        esac
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    nvrtc=$(find_nvrtc || true)
    if [ -n "$nvrtc" ]; then
        export FANWISE_NVRTC="$nvrtc"
        # A toolkit's library on the path would be found by its bare name first.
        names=$work/library
        mkdir "$names"
        for library in "$nvrtc"/libnvrtc.so*; do
            case $library in
                *.alt.*|*\*) ;;
                *) ln -sf "$library" "$names/libnvrtc.so" ;;
            esac
        done
        export LD_LIBRARY_PATH="$names:$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
    unset FANWISE_FAKE
    export FANWISE_DEVICE=gpu FANWISE_DEVICE_CACHE="${FANWISE_DEVICE_CACHE:-$here/cache}"
    code=cubin
    if [ -n "$fake" ]; then
        export FANWISE_DEVICE=fake FANWISE_FAKE="$fake" LD_LIBRARY_PATH="$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        code=ptx
    fi
    "$here/fanwise" --version > /dev/null 2> "$work/loader" \
        || fail "the binaries do not start here; they need $(cat "$here/glibc"): $(cat "$work/loader")"
    # What matters most comes first: what time runs out for is not measured.
    if [ "$models" = all ]; then
        models=xception,resnet50,mini_googlenet
        for name in $("$here/fanwise" zoo | sed -n 's/^zoo:\([^ ]*\).*/\1/p'); do
            case ,$models, in
                *",$name,"*) ;;
                *) models=$models,$name ;;
            esac
        done
    fi
    # Each limit counts the time that what is stopped has to end: 95 s until the tests, 60 s behind them, and with two
    # thirds of 480 s for these all is over 540 s from here.
    begun=$(date +%s)
    timeout -k 5 25 "$here/fanwise" devices
    # A run on a GPU, or why there can be none.
    timeout -k 5 60 "$here/fanwise" run zoo:mlp --gpus 1 --target cuda --code "$code" --batch 3 \
        --cache-dir "$FANWISE_DEVICE_CACHE" > /dev/null \
        || fail "there is no GPU to test, or it cannot be used"
    failed=
    # What an earlier run found is not what this one does.
    rm -f "$json"
    : > "$work/names"
    if [ -n "$tests" ]; then
        "$here/device" --list ${filter:+"$filter"} > "$work/names"
        grep -q ': test$' "$work/names" || fail "no test has \`$filter\` in its name"
        # To timeout, 0 is no limit.
        within=$((2 * limit / 3 - 30))
        [ "$within" -gt 0 ] || within=1
        FANWISE_DEVICE_RESULTS=$work/results timeout -k 30 "$within" "$here/device" ${filter:+"$filter"} \
            || failed=$?
    fi
    if [ -z "$bench" ]; then
        models=none
    fi
    flops=
    if [ -n "$bench" ] && [ -z "$fake" ] && command -v python3 > /dev/null; then
        flops=$(timeout -k 5 55 python3 "$here/ceilings.py" || true)
    fi
    # Nothing is begun behind the limit; what was begun may go on for half a minute.
    measured= left=$((begun + limit - $(date +%s)))
    [ "$left" -gt 0 ] || left=0
    timeout -k 30 "$((left + 30))" "$here/device" --bench "$json" --models "$models" --batch "$batch" \
        --repeat "$repeat" --bytes "$bytes" --product "$product" --limit "$left" ${flops:+--flops "$flops"} \
        --tests "$work/names,$work/results" --commit "$(cat "$here/commit")" --date "$(date -u +%F)" \
        || measured=$?
    echo "written to $json"
    "$here/device" --table "$json"
    [ "$measured" != 124 ] || fail "the measurements took longer than $((left + 30)) s"
    [ -z "$measured" ] || [ "$measured" = 3 ] || fail "something could not be measured"
    [ "$failed" != 124 ] || fail "the tests took longer than $within s: give --limit more"
    [ -z "$failed" ] || fail "a test failed"
    if [ "$measured" = 3 ]; then
        echo "all that ran is right; time ran out before the rest was measured: give --limit more" >&2
        exit 3
    fi
}

case ${1:-} in
    pack) shift; pack "$@" ;;
    run) shift; run "$@" ;;
    *) sed -n '2,30s/^# \{0,1\}//p' "$0"; exit 1 ;;
esac
