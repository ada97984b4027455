#!/bin/busybox sh
# The first process of the virtual hypervisor, in two stages.
#
# First, in the initramfs: put a root together from the root file system of this machine (9p, read-only) below a
# tmpfs, so that Python, the product and its tests are there without building an image, and whatever is written
# vanishes. Then, in that root ("second"): give the machine its devices and its name, run the job, switch off.
#
# Shared folders (9p): root, modules, and job, which holds
#   settings  HOST_NAME=..., ROOT_DISK=nvme0n1 (or empty)
#   prepare   shell commands that bring the machine into the state in which the job shall find it
#   job       what to run; its output and exit status are left in `output` and `status`
JOB=/run/vhost/job
SHARE="trans=virtio,version=9p2000.L,msize=524288"

die() {
    echo "vhost: $*"
    end
}

# A reset at once, which QEMU takes as the end (-no-reboot): switching off in good order takes Linux 0.1 s a port.
end() {
    echo b >/proc/sysrq-trigger
    /bin/busybox poweroff -f
}

first() {
    /bin/busybox --install -s /bin
    export PATH=/bin
    mkdir -p /proc /sys /dev /job /lower /upper /over /disk
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount -t devtmpfs devtmpfs /dev
    for module in $(cat /modules/order); do
        insmod "/modules/$module" 2>/dev/null || echo "vhost: module $module not loaded"
    done
    mount -t 9p -o "$SHARE,cache=none" job /job || die "no job folder"
    . /job/settings
    mount -t 9p -o "$SHARE,cache=loose,ro" root /lower || die "no root"
    mount -t tmpfs -o size=60% tmpfs /upper
    mkdir -p /upper/files /upper/work
    mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /over || die "no overlay"
    new=/over
    [ -n "$ROOT_DISK" ] && { root_on_disk "$ROOT_DISK" && new=/disk; }
    mkdir -p $new/proc $new/sys $new/dev $new/run $new/tmp
    for folder in proc sys dev; do mount --move /$folder $new/$folder; done
    mount -t tmpfs tmpfs $new/run
    mkdir -p $new$JOB
    mount --move /job $new$JOB
    cp /bin/busybox /init $new/run/vhost/
    exec switch_root $new /run/vhost/busybox sh /run/vhost/init second
}

# "/" of a real host is a file system on a disk, and what the host needs for itself is learned from that. So "/" is
# an empty ext4 on the disk, and the folders of the overlay are mounted in it.
root_on_disk() {
    tries=0
    until [ -b "/dev/$1" ]; do # the driver looks for its disks in the background
        tries=$((tries + 1))
        [ $tries -gt 100 ] && die "disk $1 did not appear"
        sleep 0.1
    done
    mount -t ext4 "/dev/$1" /disk || die "cannot mount $1"
    for entry in /over/*; do
        name=${entry##*/}
        case $name in proc | sys | dev | run | lost+found) continue ;; esac
        if [ -L "$entry" ]; then
            cp -d "$entry" "/disk/$name"
        elif [ -d "$entry" ]; then
            mkdir -p "/disk/$name" && mount --bind "$entry" "/disk/$name"
        fi
    done
}

second() {
    busybox() { /run/vhost/busybox "$@"; }
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
    export JOB BUSYBOX=/run/vhost/busybox
    release=$(busybox uname -r)
    mkdir -p /dev/pts /dev/shm "/lib/modules/$release"
    mount -t devpts devpts /dev/pts
    mount -t tmpfs tmpfs /dev/shm
    busybox mount -t 9p -o "$SHARE,cache=loose,ro" modules "/lib/modules/$release" || die "no modules"
    . $JOB/settings
    busybox hostname "$HOST_NAME"
    busybox ip link set lo up
    echo "vhost: up at $(busybox cut -d' ' -f1 /proc/uptime) s"
    cd /
    prepare_and_run >$JOB/output 2>&1 </dev/null
    echo $? >$JOB/status
    echo "vhost: job ends at $(busybox cut -d' ' -f1 /proc/uptime) s"
    busybox dmesg >$JOB/kernel.log
    end
}

prepare_and_run() {
    # With the system's shell: in busybox' own, modprobe is busybox' own as well, and that one does not know module
    # options on the kernel command line.
    /bin/sh -e $JOB/prepare || { echo "vhost: the preparation failed ($?)"; return 125; }
    $JOB/job
}

${1:-first}
