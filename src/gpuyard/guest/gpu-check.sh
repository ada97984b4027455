#!/bin/sh
# gpu-check WANTED [SECONDS]: one line of what GPUs the machine has, and status 0 when a job may have them; otherwise one
# line of what is wrong, and status 1. An image may bring a better one as /usr/local/bin/gpuyard-gpu-check.
wanted=$1
limit=${2:-60}
devices=${GPUYARD_SYSFS:-/sys}/bus/pci/devices

refuse() {
    echo "$*"
    exit 1
}

has_value() { # FILE PATTERN...
    value=$(cat "$1" 2>/dev/null)
    shift
    for pattern; do
        # shellcheck disable=SC2254 # it is a pattern
        case $value in $pattern) return 0 ;; esac
    done
    return 1
}

nvidia=0 amd=0 amd_driven=0 amd_errors=
for device in "$devices"/*; do
    has_value "$device/class" '0x0300*' '0x0302*' '0x0380*' '0x1200*' || continue
    if has_value "$device/vendor" 0x10de; then
        nvidia=$((nvidia + 1))
    elif has_value "$device/vendor" 0x1002; then
        amd=$((amd + 1))
        driver=$(readlink "$device/driver")
        [ "${driver##*/}" = amdgpu ] && amd_driven=$((amd_driven + 1))
        has_value "$device/ras/umc_err_count" 'ue: [1-9]*' && amd_errors=${device##*/}
    fi
done
[ $((nvidia + amd)) -ge "$wanted" ] || refuse "$((nvidia + amd)) of $wanted GPUs are on the machine's PCI bus"

if [ "$nvidia" -gt 0 ]; then
    command -v nvidia-smi >/dev/null ||
        refuse "$nvidia NVIDIA GPUs are on the PCI bus, and the image has no driver for them: there is no nvidia-smi"
    query=name,pci.bus_id,ecc.errors.uncorrected.volatile.total
    found=$(timeout -k 5 "$limit" nvidia-smi --query-gpu=$query --format=csv,noheader,nounits 2>&1 </dev/null)
    status=$?
    case $status in
    0) ;;
    124 | 137) refuse "nvidia-smi has not answered in $limit s" ;;
    *) refuse "nvidia-smi failed ($status): $(echo "$found" | head -n 1)" ;;
    esac
    seen=$(echo "$found" | grep -c '[^[:space:]]')
    [ "$((seen + amd_driven))" -ge "$wanted" ] || refuse "nvidia-smi sees $seen GPUs, and $wanted are wanted"
    broken=$(echo "$found" | awk -F ', *' '$3 + 0 > 0 { print $2 " has " $3 " uncorrected ECC errors"; exit }')
    [ -z "$broken" ] || refuse "$broken"
    # Xid 45 cleans up after a program that was ended, or after another Xid.
    xid=$(${GPUYARD_DMESG:-dmesg} 2>/dev/null | sed -n '/Xid ([^)]*): 45,/d; s/.*\(NVRM: Xid.*\)/\1/p' | tail -n 1)
    [ -z "$xid" ] || refuse "the kernel log has $xid"
    echo "$found" | awk -F ', *' '{ printf "%s%s at %s", sep, $1, $2; sep = "; " } END { print "" }'
    exit 0
fi
if [ "$amd" -gt 0 ]; then
    [ "$amd_driven" -gt 0 ] || refuse "$amd AMD GPUs are on the PCI bus, and no driver of the image has taken them"
    [ "$amd_driven" -ge "$wanted" ] || refuse "amdgpu has $amd_driven GPUs, and $wanted are wanted"
    [ -z "$amd_errors" ] || refuse "$amd_errors has uncorrected ECC errors"
    echo "$amd_driven AMD GPUs with amdgpu"
    exit 0
fi
echo "no GPU wanted"
