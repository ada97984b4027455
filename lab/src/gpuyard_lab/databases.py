"""Creates and drops the databases of a lab, on its own PostgreSQL or on a server that is there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.settings import DATABASE_VARIABLE, Lab

NAMES = ("keystone", "placement", "glance", "neutron", "nova_api", "nova_cell0", "nova_cell1", "gpuyard")
"""One per service, Nova's three, and one for gpuyard's own records, which the lab's portal leaves empty: it has an
SQLite file (`Lab.portal_database`)."""


@dataclass(frozen=True)
class Dialect:
    """The statements that make and drop databases on one kind of server."""

    maintenance: str
    """The database to connect to for these statements."""
    listing: str
    creation: str = ""
    dropping: str = ""


_MYSQL = Dialect("", "SHOW DATABASES", creation=" CHARACTER SET utf8mb3")
# Not SQLite: Nova, Neutron and Glance write from several threads at once, which it answers with "database is locked".
DIALECTS = {
    "postgresql": Dialect("postgres", "SELECT datname FROM pg_database", dropping=" WITH (FORCE)"),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
EXAMPLE = "as in postgresql+psycopg2://user:password@host/{name} or mysql+pymysql://user:password@host/lab_{name}"


def check_template(template: str) -> None:
    """Raise LabSettingsError when a database URL cannot be used."""
    try:
        dialect = sa.make_url(template.replace("{name}", "keystone")).get_backend_name()
    except (ArgumentError, NoSuchModuleError):
        raise LabSettingsError(f"{DATABASE_VARIABLE} or --database is no SQLAlchemy URL; write it {EXAMPLE}") from None
    if dialect not in DIALECTS:
        raise LabSettingsError(f"the lab does not run on {dialect}, only on PostgreSQL, MySQL and MariaDB, {EXAMPLE}")
    if "{name}" not in template:
        raise LabSettingsError(f"the lab makes {len(NAMES)} databases, so their URL needs a {{name}}, {EXAMPLE}")


class DatabaseServer:
    """A database server, reached through the lab's URL."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.url = sa.make_url(lab.database_url("keystone"))
        self._dialect = DIALECTS[self.url.get_backend_name()]

    def real_name(self, name: str) -> str:
        """Return a database's name on the server: the URL may add something to it."""
        return sa.make_url(self._lab.database_url(name)).database or name

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        return self._refusal() is None

    def wait(self, alive: Callable[[], None], timeout_s: float = 30.0) -> None:
        """Return when the server answers. ``alive`` raises when there is no use in waiting any longer. Raises LabError
        after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while (reason := self._refusal()) is not None:
            alive()
            if time.monotonic() > deadline:
                raise LabError(f"the database server at {self.url!r} does not answer: {reason}")
            time.sleep(0.05)

    def _refusal(self) -> str | None:
        """Return why the server does not accept connections; None when it does."""
        try:
            with self._connection():
                return None
        except OperationalError as error:
            return str(error.orig).strip()

    def existing(self) -> set[str]:
        """Return the lab's databases that are there, by their real names."""
        with self._connection() as connection:
            databases = set(connection.execute(sa.text(self._dialect.listing)).scalars())
        return databases & {self.real_name(name) for name in NAMES}

    def create(self, names: Iterable[str]) -> None:
        """Make databases, given by their real names."""
        self._run(f"CREATE DATABASE {{}}{self._dialect.creation}", names)

    def drop(self, names: Iterable[str]) -> None:
        """Drop databases, given by their real names, whoever is connected to them."""
        self._run(f"DROP DATABASE IF EXISTS {{}}{self._dialect.dropping}", names)

    def _run(self, statement: str, names: Iterable[str]) -> None:
        try:
            with self._connection() as connection:
                quote = connection.dialect.identifier_preparer.quote_identifier
                for name in names:
                    connection.execute(sa.text(statement.format(quote(name))))
        except SQLAlchemyError as error:
            raise LabError(f"the database server at {self.url!r} refused: {error}") from error

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        url = self.url.set(database=self._dialect.maintenance)
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()
