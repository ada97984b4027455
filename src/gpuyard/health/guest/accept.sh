#!/bin/sh
# Checks the GPUs of a server that was started for nothing else, and tells the console what came of it: nothing else can
# speak to gpuyard from here. One verdict: "ok" with what was seen, "failed" for what is the GPU's fault, "unable" for
# what is the image's. The number in each line says which check it is that speaks.
root=${GPUYARD_ROOT:-}
here=$root/var/lib/gpuyard
state=$root/run/gpuyard
devices=$root/sys/bus/pci/devices
image_check=$root/usr/local/bin/gpuyard-gpu-check
# shellcheck source=/dev/null
. "$here/settings"

tell() { # standard input goes to every console, as Nova's log may be any of them
    text=$(cat)
    for name in $({ tr ' ' '\n' <"$root/sys/class/tty/console/active"; echo ttyS0; } | sort -u); do
        printf '\n%s\n' "$text" >>"$root/dev/$name"
    done 2>/dev/null
}

say() { # one line of printable characters
    printf 'gpuyard-accept: %s %s\n' "$NONCE" "$(printf '%s' "$*" | tr -c '[:print:]' ' ' | cut -c 1-300)" | tell
}

verdict() {
    say "$@"
    say over
    exit 0
}

within() { # SECONDS FILE COMMAND...: its output in FILE; in the background, as a driver that hangs cannot be killed
    limit=$1 file=$2
    shift 2
    rm -f "$file.status"
    { timeout -k 5 "$limit" "$@" >"$file" 2>&1 </dev/null; echo $? >"$file.status"; } &
    waited=0
    until [ -s "$file.status" ]; do
        [ $waited -le $((limit + 10)) ] || return 124
        sleep "${GPUYARD_PAUSE:-1}"
        waited=$((waited + 1))
    done
    return "$(cat "$file.status")"
}

look_at_bus() { # each GPU answers, and has places in memory
    seen=0
    for device in "$devices"/*; do
        vendor=$(cat "$device/vendor" 2>/dev/null) product=$(cat "$device/device" 2>/dev/null)
        case " $IDS " in *" ${vendor#0x}:${product#0x} "*) ;; *) continue ;; esac
        seen=$((seen + 1))
        begin=$(od -An -tx1 -N4 "$device/config" 2>/dev/null | tr -d ' \n')
        [ "$begin" != ffffffff ] || verdict failed "${device##*/} does not answer: its config space reads 0xff"
        bars=$(head -n 6 "$device/resource" 2>/dev/null | grep -c -v '^0x0* 0x0* 0x0*$')
        [ "$bars" -gt 0 ] || verdict failed "${device##*/} has no BAR in the guest's memory"
    done
    [ "$seen" = "$GPUS" ] || verdict failed "$seen of $GPUS GPUs ($IDS) are on the machine's PCI bus"
}

look_at_driver() {
    case " $IDS" in
    *" 10de:"*)
        command -v nvidia-smi >/dev/null || verdict unable "the image has no driver for NVIDIA GPUs: there is no nvidia-smi"
        ;;
    *" 1002:"*)
        [ -d "$root/sys/module/amdgpu" ] || modprobe amdgpu 2>/dev/null ||
            verdict unable "the image has no driver for AMD GPUs: there is no amdgpu"
        ;;
    esac
    if [ -x "$image_check" ]; then set -- "$image_check"; else set -- sh "$here/gpu-check"; fi
    within "$CHECK_SECONDS" "$state/check" "$@" "$GPUS" "$CHECK_SECONDS"
    status=$?
    words=$(head -n 1 "$state/check" 2>/dev/null)
    [ $status = 0 ] || verdict failed "${words:-the check of the GPUs ended with status $status and gave no reason}"
    driver=$(timeout 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [ -n "$driver" ] || driver=$(cat "$root/sys/module/amdgpu/version" 2>/dev/null)
    [ -z "$driver" ] || say driver "$driver"
}

burn_in() { # what the image has for it
    if command -v gpu_burn >/dev/null; then
        within $((BURN_SECONDS + 60)) "$state/burn" gpu_burn "$BURN_SECONDS" ||
            verdict failed "gpu_burn ended with status $?: $(tail -n 1 "$state/burn")"
        grep -q FAULTY "$state/burn" && verdict failed "gpu_burn: $(grep -m 1 FAULTY "$state/burn")"
        words="$words; gpu_burn ran for $BURN_SECONDS s"
    fi
    if command -v nvbandwidth >/dev/null; then
        within 120 "$state/bandwidth" nvbandwidth -t host_to_device_memcpy_ce ||
            verdict failed "nvbandwidth ended with status $?: $(tail -n 1 "$state/bandwidth")"
        words="$words; $(grep -m 1 '^SUM' "$state/bandwidth" | tr -s ' ')"
    fi
}

mkdir -p "$state"
say begun
look_at_bus
look_at_driver
burn_in
verdict ok "$GPUS $words"
