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

fail() { # by the GPU's fault
    verdict failed "$when$*"
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
        [ "$begin" != ffffffff ] || fail "${device##*/} does not answer: its config space reads 0xff"
        bars=$(head -n 6 "$device/resource" 2>/dev/null | grep -c -v '^0x0* 0x0* 0x0*$')
        [ "$bars" -gt 0 ] || fail "${device##*/} has no BAR in the guest's memory"
    done
    [ "$seen" = "$GPUS" ] || fail "$seen of $GPUS GPUs ($IDS) are on the machine's PCI bus"
}

look_at_image() { # it can drive the GPUs
    case " $IDS" in
    *" 10de:"*)
        command -v nvidia-smi >/dev/null || verdict unable "the image has no driver for NVIDIA GPUs: there is no nvidia-smi"
        ;;
    *" 1002:"*)
        [ -d "$root/sys/module/amdgpu" ] || modprobe amdgpu 2>/dev/null ||
            verdict unable "the image has no driver for AMD GPUs: there is no amdgpu"
        ;;
    esac
}

look_at_driver() { # it has the GPUs, and neither counts errors nor has an Xid in the kernel's log
    if [ -x "$image_check" ]; then set -- "$image_check"; else set -- sh "$here/gpu-check"; fi
    within "$CHECK_SECONDS" "$state/check" "$@" "$GPUS" "$CHECK_SECONDS"
    status=$?
    answer=$(head -n 1 "$state/check" 2>/dev/null)
    [ $status = 0 ] || fail "${answer:-the check of the GPUs ended with status $status and gave no reason}"
    [ -z "$when" ] || return 0
    words=$answer
    driver=$(timeout 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [ -n "$driver" ] || driver=$(cat "$root/sys/module/amdgpu/version" 2>/dev/null)
    [ -z "$driver" ] || say driver "$driver"
}

find_fault() { # FILE: what it has against an NVIDIA card by itself; what a card has not is "N/A"
    # "NVIDIA GPU Memory Error Management", RMA policy thresholds: a row remapping that failed, and the SRAM threshold.
    # What is pending waits for a reset, or for the driver to be loaded, and both have happened when this server booted.
    awk '
    function bad(words) { if (!found) print card " " words; found = 1 }
    /<gpu id=/ { card = $0; sub(/.*id="/, "", card); sub(/".*/, "", card) }
    /<sram_threshold_exceeded>Yes</ { bad("has more uncorrectable SRAM errors than NVIDIA lets a card have") }
    /<remapped_row_failure>Yes</ { bad("has a row of its memory that could not be remapped") }
    /<remapped_row_pending>Yes</ { bad("has a row remapping that is still pending after a reset") }
    /<pending_(blacklist|retirement)>Yes</ { bad("has a page retirement that is still pending in a new server") }
    ' "$1"
}

ask_smi() { # NAME ARGUMENT...: what nvidia-smi says, in $state/NAME. Some of its exit codes blame a GPU
    name=$1
    shift
    within "$CHECK_SECONDS" "$state/$name" nvidia-smi "$@"
    status=$?
    corrupted=$(grep -m 1 'infoROM is corrupted at gpu' "$state/$name")
    [ -z "$corrupted" ] || fail "${corrupted##* } has a corrupted InfoROM"
    case $status in # the page of nvidia-smi(1), "RETURN VALUE"
    0)
        worked="$worked $name"
        return 0
        ;;
    8) why="the external power cables of a GPU are not properly attached" ;;
    10) why="the kernel has an interrupt issue with a GPU" ;;
    14) why="the InfoROM of a GPU is corrupted" ;;
    15) why="a GPU has fallen off the bus, or cannot be reached any more" ;;
    124 | 137) why="it has not answered in $CHECK_SECONDS s" ;;
    *)
        case " $worked " in
        *" $name "*) why="it worked before; now it says: $(tail -n 1 "$state/$name")" ;;
        *) return 1 ;; # an older driver, or a wrapper: the driver was looked at before
        esac
        ;;
    esac
    fail "nvidia-smi${*:+ $*} ended with status $status: $why"
}

look_at_card() { # by what its driver has kept of it
    command -v nvidia-smi >/dev/null || return 0
    ask_smi table # of a corrupted InfoROM nothing but its table tells
    ask_smi card -q -x || return 0
    fault=$(find_fault "$state/card")
    [ -z "$fault" ] || fail "$fault"
}

say_facts() { # what each NVIDIA card shows of what does not change by itself; of its link the best that it did at work
    # NAME VALUE, or NAME VALUE of what both ends can. Rates of generations: PCI-SIG, GT/s.
    awk -v busy="$state/working" -v kept="ecc-corrected ecc-uncorrected rows-corrected rows-uncorrected pages-retired" '
    function value(line) { sub(/^[^>]*>/, "", line); sub(/<.*/, "", line); return line }
    function number(line) { # -1: it has none, or the line is not all there yet
        if (line !~ /<\//) return -1
        line = value(line)
        sub(/x$/, "", line)
        return line ~ /^[0-9]+$/ && length(line) < 13 ? line + 0 : -1
    }
    function add(name, line) { if ((seen = number(line)) >= 0) sum[card, name] += seen }
    function most(name, line) { if ((seen = number(line)) > sum[card, name]) sum[card, name] = seen }
    function least(name, line) {
        if ((seen = number(line)) > 0 && (!sum[card, name] || seen < sum[card, name])) sum[card, name] = seen
    }
    function link(name, is, can) {
        if (is && can) printf "fact %s %s of %s\n", name, is, can
        else if (is) printf "fact %s %s\n", name, is
    }
    BEGIN { split("2.5 5 8 16 32 64", rate, " "); split(kept, names, " ") }
    /<gpu id=/ { card = $0; sub(/.*id="/, "", card); sub(/".*/, "", card); cards[card] = 1 }
    FILENAME == busy && /<current_link_gen>/ { most("gen", $0) }
    FILENAME == busy && /<(max_link_gen|max_device_link_gen|max_host_link_gen)>/ { least("max gen", $0) }
    FILENAME == busy && /<current_link_width>/ { most("width", $0) }
    FILENAME == busy && /<max_link_width>/ { least("max width", $0) }
    FILENAME == busy { next }
    /<aggregate>/ { life = 1 }
    /<\/aggregate>/ { life = 0 }
    /<single_bit>/ { kind = "ecc-corrected" }
    /<double_bit>/ { kind = "ecc-uncorrected" }
    life && /<total>/ { add(kind, $0) }
    life && /_correctable/ { add("ecc-corrected", $0) }
    life && /_uncorrectable/ { add("ecc-uncorrected", $0) }
    /<remapped_row_corr>/ { add("rows-corrected", $0) }
    /<remapped_row_unc>/ { add("rows-uncorrected", $0) }
    /<retired_count>/ { add("pages-retired", $0) }
    END {
        for (card in cards) {
            link("link-width", sum[card, "width"], sum[card, "max width"])
            link("link-speed", rate[sum[card, "gen"]], rate[sum[card, "max gen"]])
            for (one in names) if ((card, names[one]) in sum) printf "fact %s %.0f\n", names[one], sum[card, names[one]]
        }
    }' "$state/working" "$state/card" | head -n 1000 | while read -r line; do say "$line"; done
}

say_bandwidth() { # GB/s from the host to each GPU: the first row of the matrix of nvbandwidth, or a share of its sum
    awk -v gpus="$GPUS" '
    /^memcpy CE .*bandwidth/ && !found { lines = 2; next }
    lines && NF && !--lines {
        for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+(\.[0-9]+)?$/) { printf "fact bandwidth %.2f\n", $i; found = 1 }
    }
    /^SUM / && !found && $NF ~ /^[0-9]+(\.[0-9]+)?$/ { printf "fact bandwidth %.2f\n", $NF / gpus; found = 1 }
    ' "$state/bandwidth" | head -n 100 | while read -r line; do say "$line"; done
}

watch_links() { # until the work is over: a link sleeps while there is nothing to do
    while [ -e "$state/at-work" ]; do
        timeout -k 5 20 nvidia-smi -q -x </dev/null
        sleep "${GPUYARD_PAUSE:-1}"
    done >>"$state/working" 2>/dev/null
}

put_to_work() { # SECONDS FILE COMMAND...: within, while the links are watched
    : >"$state/at-work"
    command -v nvidia-smi >/dev/null && watch_links &
    within "$@"
    ended=$?
    rm -f "$state/at-work"
    return $ended
}

burn_in() { # what the image has for it
    if command -v gpu_burn >/dev/null; then
        put_to_work $((BURN_SECONDS + 60)) "$state/burn" gpu_burn "$BURN_SECONDS" ||
            fail "gpu_burn ended with status $?: $(tail -n 1 "$state/burn")"
        grep -q FAULTY "$state/burn" && fail "gpu_burn: $(grep -m 1 FAULTY "$state/burn")"
        # Of several GPUs it calls one OK whose process died.
        grep -q 'DIED!' "$state/burn" && fail "gpu_burn: the process of a GPU died while it worked"
        words="$words; gpu_burn ran for $BURN_SECONDS s"
    fi
    if command -v nvbandwidth >/dev/null; then
        put_to_work 120 "$state/bandwidth" nvbandwidth -t host_to_device_memcpy_ce ||
            fail "nvbandwidth ended with status $?: $(tail -n 1 "$state/bandwidth")"
    fi
}

mkdir -p "$state"
: >"$state/working"
worked='' when=''
say begun
look_at_bus
look_at_image
look_at_driver
look_at_card
burn_in
when="after the work: " # a GPU may have been lost, and errors come, while it worked
look_at_bus
look_at_card
look_at_driver
case $worked in *" card"*) say_facts ;; esac
[ ! -e "$state/bandwidth" ] || say_bandwidth
verdict ok "$GPUS $words"
