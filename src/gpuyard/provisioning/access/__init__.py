"""The rights of gpuyard in a cloud where it is no admin: the calls that it makes, and the accounts and policies for
them."""
