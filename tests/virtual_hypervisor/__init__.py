"""A hypervisor with GPUs, an IOMMU and a real Linux kernel, on a machine that has none of them. See README.md."""
