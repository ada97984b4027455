"""Makes a cloud what the site file says: flavors, limits, aggregates, image properties, accounts and policies.

`read.py` reads what there is, `site/plan.py` compares, `apply.py` applies the plan. `access/` has the one table of
calls that gpuyard makes to OpenStack and the roles and policy rules which allow them.
"""
