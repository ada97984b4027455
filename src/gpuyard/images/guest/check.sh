#!/bin/sh
# Looks at the server that it runs in, tells the console what there is, and switches the server off. It judges nothing:
# gpuyard does, of what it reads. Each line has the number of this check, a word, and what there is of it.
here=/var/lib/gpuyard
# shellcheck source=/dev/null
. "$here/settings"

tell() { # standard input goes to every console, as any of them may be looked at
    text=$(cat)
    for name in $({ tr ' ' '\n' </sys/class/tty/console/active; echo ttyS0; } | sort -u); do
        printf '\n%s\n' "$text" >>"/dev/$name"
    done 2>/dev/null
}

say() { # one line of printable characters
    printf 'gpuyard-image: %s %s\n' "$NONCE" "$(printf '%s' "$*" | tr -c '[:print:]' ' ' | cut -c 1-300)" | tell
}

look_at_system() {
    say kernel "$(uname -r)"
    say command-line "$(cat /proc/cmdline)"
    say seconds "$(cut -d ' ' -f 1 /proc/uptime)"
    say init "$(cat /proc/1/comm)"
    say failed-units "$(systemctl list-units --state=failed --plain --no-legend | cut -d ' ' -f 1 | tr '\n' ' ')"
}

look_at_cloud_init() {
    say datasource "$(sed -n 's/.*"datasource": *"\(.*\)".*/\1/p' /run/cloud-init/result.json 2>/dev/null)"
    say cloud-init-errors "$(tr -d '\n' </run/cloud-init/result.json 2>/dev/null |
        sed -n 's/.*"errors": *\[\([^]]*\)\].*/\1/p')"
    say host-name "$(hostname)"
    say written "$(cat $here/written 2>/dev/null)"
}

look_at_root() {
    source=$(findmnt -n -o SOURCE /)
    disk=$(lsblk -n -d -o PKNAME "$source" 2>/dev/null)
    say root "$(df -B1 --output=size / | tail -n 1 | tr -d ' ') $(cat "/sys/class/block/$disk/size") $source"
}

look_at_bus() {
    command -v lspci >/dev/null || say no-lspci
    for device in $(lspci -n 2>/dev/null | cut -d ' ' -f 3 | sort -u); do say pci "$device"; done
}

look_at_units() {
    for unit in gpuyard-agent.service ssh.service; do
        enabled=$(systemctl is-enabled $unit 2>/dev/null)
        active=$(systemctl show -p ActiveState --value $unit)
        say unit "$unit ${enabled:-missing} ${active:-unknown} $(systemctl show -p NRestarts --value $unit)"
    done
}

look_at_driver() {
    file=$(find "/lib/modules/$(uname -r)" -name 'nvidia*.ko*' |
        grep -E '/nvidia(-current|-tesla-[0-9]+)?\.ko[.a-z]*$' | head -n 1)
    [ -n "$file" ] || return 0
    say driver-module "$(modinfo -F version "$file") $(modinfo -F license "$file")"
    say driver-load "$(modprobe nvidia 2>&1 | tail -n 1) $(dmesg 2>/dev/null | grep -i nvrm | head -n 1)"
    say driver-loaded "$(lsmod | grep -c '^nvidia ')"
    say driver-held "$(apt-mark showhold | grep -c nvidia)"
    command -v nvidia-smi >/dev/null && say driver-smi "$(command -v nvidia-smi)"
}

look_at_runner() {
    [ -d /opt/actions-runner ] || return 0
    say runner "$(stat -c %U /opt/actions-runner) $(test -x /opt/actions-runner/run.sh && echo run.sh)"
    say updates "$(systemctl is-enabled apt-daily.timer 2>/dev/null || true)"
}

mkdir -p /run/gpuyard
say begun
look_at_system
look_at_cloud_init
look_at_root
look_at_bus
look_at_units
look_at_driver
look_at_runner
say over
