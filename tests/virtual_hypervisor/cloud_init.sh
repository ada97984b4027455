#!/bin/busybox sh
# The initramfs of a server: loads drivers, puts what the test baked into the image there, and starts Debian.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(cat /modules/order); do
    insmod "/modules/$module" 2>/dev/null || echo "server: module $module not loaded"
done
tries=0
until [ -b /dev/vda ]; do # the driver looks for its disks in the background
    tries=$((tries + 1))
    [ $tries -gt 100 ] && { echo "server: no disk"; poweroff -f; }
    sleep 0.1
done
mount -t ext4 /dev/vda /new
cp -a /baked/. /new/
for folder in proc sys dev; do mount --move /$folder /new/$folder; done
exec switch_root /new /sbin/init
