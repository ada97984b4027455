"""Proof that VMs can have the GPUs, and what is no longer as it was recorded."""
