# Packages of GRUB are this element's own: Debian's grub-pc and grub-efi-amd64, which the element bootloader would take,
# cannot both be installed. Its grub.cfg is taken as it is.
export DIB_SKIP_GRUB_PACKAGE_INSTALL=True
export DIB_GRUB_TIMEOUT=${DIB_GRUB_TIMEOUT:-1}
# For servers: nomodeset would keep amdgpu from its GPUs. (Empty would be the default.)
export DIB_BOOTLOADER_DEFAULT_CMDLINE=consoleblank=0
export DIB_APT_MINIMAL_CREATE_INTERFACES=0
export DIB_GPUYARD_RESOLVED=${DIB_GPUYARD_RESOLVED:-package}
