"""What gpuyard may do in a cloud when it is no admin: the calls that it makes, and who must let it make them."""
