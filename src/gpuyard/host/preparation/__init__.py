"""From a bare host to one whose GPUs can be given to VMs, and back: plan, apply, undo."""
