"""What servers that gpuyard itself starts have in common: how they are told what to do, and how they answer."""
