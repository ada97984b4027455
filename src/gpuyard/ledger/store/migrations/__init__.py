"""How the tables came to be; alembic reads this folder."""
