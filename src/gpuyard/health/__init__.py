"""How each GPU is: signals, their rules, and the life of a GPU between tenants. Pure, but for `store/`."""
