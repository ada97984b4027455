export DIB_GPUYARD_CUDA=${DIB_GPUYARD_CUDA:?is set by gpuyard}
