"""The schema of the database: one script for version `FIRST` and one for each later version, none ever edited again.

`PRAGMA user_version` of a file says which version it has.
"""

from __future__ import annotations

import sqlite3

FIRST = 11
"""The oldest version that `upgrade` takes. The last releases without a daemon wrote it."""
SCRIPTS = (
    """
CREATE TABLE sandboxes (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, name VARCHAR, state VARCHAR NOT NULL, level VARCHAR NOT NULL,
    backend VARCHAR NOT NULL, template VARCHAR NOT NULL, spec BLOB NOT NULL, created_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL, ended_at FLOAT, limit_name VARCHAR, reason VARCHAR, deadline FLOAT NOT NULL,
    boot_id VARCHAR NOT NULL, holder VARCHAR NOT NULL, origin VARCHAR, restoring VARCHAR, workspace BLOB,
    incarnation INTEGER DEFAULT 0 NOT NULL, layers VARCHAR DEFAULT '' NOT NULL, policy VARCHAR, PRIMARY KEY (id)
);
CREATE INDEX sandboxes_by_state ON sandboxes (state);
CREATE INDEX sandboxes_by_name ON sandboxes (owner, name);
CREATE UNIQUE INDEX one_living_name ON sandboxes (owner, name)
    WHERE name IS NOT NULL AND state IN ('creating', 'restoring', 'running', 'paused');
CREATE TABLE idempotency_keys (
    owner VARCHAR NOT NULL, "key" VARCHAR NOT NULL, digest VARCHAR NOT NULL, sandbox VARCHAR NOT NULL,
    created_at FLOAT NOT NULL, PRIMARY KEY (owner, "key")
);
CREATE INDEX idempotency_keys_by_sandbox ON idempotency_keys (sandbox);
CREATE TABLE leases (
    name VARCHAR NOT NULL, holder VARCHAR NOT NULL, epoch INTEGER NOT NULL, expires_at FLOAT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE snapshots (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, name VARCHAR, source VARCHAR NOT NULL, template BLOB NOT NULL,
    spec BLOB NOT NULL, created_at FLOAT NOT NULL, holder VARCHAR, workspace BLOB, policy VARCHAR, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX one_snapshot_name ON snapshots (owner, name) WHERE name IS NOT NULL;
CREATE INDEX snapshots_by_source ON snapshots (owner, source);
CREATE TABLE repositories (
    id VARCHAR NOT NULL, scope VARCHAR NOT NULL, url VARCHAR NOT NULL, head VARCHAR, observed_at FLOAT,
    observed_boot VARCHAR, observed_clock FLOAT, used_at FLOAT NOT NULL, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX one_repository_per_scope ON repositories (scope, url);
CREATE TABLE repository_refs (
    repository VARCHAR NOT NULL, name VARCHAR NOT NULL, oid VARCHAR NOT NULL, commit_id VARCHAR,
    PRIMARY KEY (repository, name)
);
CREATE INDEX repository_refs_by_commit ON repository_refs (repository, commit_id);
CREATE TABLE bases (
    id VARCHAR NOT NULL, repository VARCHAR NOT NULL, commit_id VARCHAR NOT NULL, branch VARCHAR NOT NULL,
    holder VARCHAR, created_at FLOAT NOT NULL, used_at FLOAT NOT NULL, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX one_base ON bases (repository, commit_id, branch);
CREATE TABLE workshops (
    id VARCHAR NOT NULL, holder VARCHAR NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE workspaces (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, name VARCHAR NOT NULL, state VARCHAR NOT NULL, holder VARCHAR,
    url VARCHAR, branch VARCHAR, oid VARCHAR, observed_at FLOAT, repository VARCHAR, base VARCHAR,
    layers VARCHAR NOT NULL, sandbox VARCHAR, epoch INTEGER NOT NULL, disk_mib INTEGER NOT NULL,
    created_at FLOAT NOT NULL, used_at FLOAT NOT NULL, pinned_until FLOAT, kept BLOB, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX one_workspace_name ON workspaces (owner, name);
CREATE INDEX workspaces_by_sandbox ON workspaces (sandbox);
CREATE TABLE results (
    owner VARCHAR NOT NULL, of_id VARCHAR NOT NULL, kind VARCHAR NOT NULL, name VARCHAR NOT NULL,
    of_name VARCHAR NOT NULL, digest VARCHAR NOT NULL, path VARCHAR, bytes INTEGER, is_tree INTEGER,
    created_at FLOAT NOT NULL, PRIMARY KEY (owner, of_id, kind, name)
);
CREATE TABLE secrets (
    owner VARCHAR NOT NULL, name VARCHAR NOT NULL, version INTEGER NOT NULL, "key" VARCHAR NOT NULL,
    wrapped BLOB NOT NULL, sealed BLOB NOT NULL, created_at FLOAT NOT NULL, updated_at FLOAT NOT NULL, used_at FLOAT,
    PRIMARY KEY (owner, name)
);
CREATE TABLE approvals (
    id VARCHAR NOT NULL, owner VARCHAR NOT NULL, kind VARCHAR NOT NULL, sandbox VARCHAR NOT NULL,
    incarnation INTEGER NOT NULL, revision VARCHAR NOT NULL, digest VARCHAR NOT NULL, summary VARCHAR NOT NULL,
    state VARCHAR NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, deadline FLOAT NOT NULL,
    boot_id VARCHAR NOT NULL, decided_at FLOAT, decided_by VARCHAR, reason VARCHAR, used_at FLOAT, PRIMARY KEY (id)
);
CREATE INDEX approvals_by_sandbox ON approvals (owner, sandbox, digest);
CREATE TABLE policies (
    revision VARCHAR NOT NULL, document BLOB NOT NULL, kept_at FLOAT NOT NULL, PRIMARY KEY (revision)
);
CREATE TABLE sandbox_secrets (
    sandbox VARCHAR NOT NULL, name VARCHAR NOT NULL, owner VARCHAR NOT NULL, placeholder VARCHAR NOT NULL,
    rule BLOB NOT NULL, stored VARCHAR, created_at FLOAT NOT NULL, PRIMARY KEY (sandbox, name)
);
CREATE INDEX sandbox_secrets_by_stored ON sandbox_secrets (owner, stored);
    """,
    # 12: Alembic's table, from the versions that used it.
    """
DROP TABLE IF EXISTS alembic_version;
    """,
    # 13: Whether a checkout wants submodules, and how many it lacks. Before, it always had them.
    """
ALTER TABLE workspaces ADD COLUMN submodules INTEGER DEFAULT 1 NOT NULL;
ALTER TABLE workspaces ADD COLUMN unfetched INTEGER DEFAULT 0 NOT NULL;
ALTER TABLE bases ADD COLUMN submodules INTEGER DEFAULT 1 NOT NULL;
ALTER TABLE bases ADD COLUMN unfetched INTEGER DEFAULT 0 NOT NULL;
DROP INDEX one_base;
CREATE UNIQUE INDEX one_base ON bases (repository, commit_id, branch, submodules);
    """,
    # 14: The rest of the TTL of a paused sandbox.
    """
ALTER TABLE sandboxes ADD COLUMN left_seconds FLOAT;
    """,
    # 15: One daemon owns the directory: no holders and no leases. Unfinished rows say so.
    """
DROP TABLE leases;
ALTER TABLE sandboxes DROP COLUMN holder;
ALTER TABLE workspaces DROP COLUMN holder;
ALTER TABLE workshops DROP COLUMN holder;
ALTER TABLE snapshots ADD COLUMN is_whole INTEGER DEFAULT 0 NOT NULL;
UPDATE snapshots SET is_whole = holder IS NULL;
ALTER TABLE snapshots DROP COLUMN holder;
ALTER TABLE bases ADD COLUMN is_whole INTEGER DEFAULT 0 NOT NULL;
UPDATE bases SET is_whole = holder IS NULL;
ALTER TABLE bases DROP COLUMN holder;
    """,
    # 16: The caller's variables by which a secret's value is read, encrypted.
    """
ALTER TABLE sandbox_secrets ADD COLUMN "key" VARCHAR;
ALTER TABLE sandbox_secrets ADD COLUMN wrapped BLOB;
ALTER TABLE sandbox_secrets ADD COLUMN sealed BLOB;
    """,
    # 17: Columns have the names of fields, and text for JSON. A sandbox has its idempotency key itself. Its indexes
    # name only those that are looked for: the fewer, the fewer pages a create writes.
    """
ALTER TABLE sandboxes ADD COLUMN idempotency_key VARCHAR;
ALTER TABLE sandboxes ADD COLUMN spec_digest VARCHAR;
UPDATE sandboxes SET (idempotency_key, spec_digest) =
    (SELECT "key", digest FROM idempotency_keys WHERE sandbox = id);
DROP TABLE idempotency_keys;
ALTER TABLE sandboxes RENAME COLUMN limit_name TO "limit";
ALTER TABLE sandboxes ADD COLUMN kept_until FLOAT;
UPDATE sandboxes SET ended_at = created_at WHERE ended_at IS NULL AND state IN ('killed', 'failed');
UPDATE sandboxes SET left_seconds = NULL WHERE ended_at IS NOT NULL;
UPDATE sandboxes SET kept_until = expires_at WHERE left_seconds IS NOT NULL;
UPDATE sandboxes SET spec = CAST(spec AS TEXT), workspace = CAST(workspace AS TEXT),
    layers = CASE layers WHEN '' THEN '[]' ELSE '["' || replace(layers, ' ', '","') || '"]' END;
DROP INDEX sandboxes_by_state;
DROP INDEX sandboxes_by_name;
DROP INDEX one_living_name;
ALTER TABLE sandboxes DROP COLUMN name;
ALTER TABLE sandboxes ADD COLUMN name VARCHAR AS (json_extract(spec, '$.name'));
CREATE INDEX living_sandboxes ON sandboxes (created_at, id) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_by_name ON sandboxes (owner, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX one_living_name ON sandboxes (owner, name) WHERE name IS NOT NULL AND ended_at IS NULL;
CREATE UNIQUE INDEX one_idempotency_key ON sandboxes (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
ALTER TABLE snapshots RENAME COLUMN template TO made_from;
ALTER TABLE snapshots ADD COLUMN template VARCHAR;
UPDATE snapshots SET template = json_extract(CAST(made_from AS TEXT), '$.name'), made_from = CAST(made_from AS TEXT),
    spec = CAST(spec AS TEXT), workspace = CAST(workspace AS TEXT);
ALTER TABLE workspaces RENAME COLUMN repository TO cache;
ALTER TABLE workspaces RENAME COLUMN url TO repository;
ALTER TABLE workspaces RENAME COLUMN oid TO "commit";
UPDATE workspaces SET kept = CAST(kept AS TEXT);
    """,
    # 18: The number of a sandbox's start is its instance's id.
    """
ALTER TABLE sandboxes RENAME COLUMN incarnation TO instance_id;
ALTER TABLE approvals RENAME COLUMN incarnation TO instance_id;
    """,
    # 19: A sandbox says itself with which sessions it ends. Files said that before.
    """
ALTER TABLE sandboxes ADD COLUMN sessions VARCHAR DEFAULT '[]' NOT NULL;
    """,
)
VERSION = FIRST - 1 + len(SCRIPTS)


def upgrade(db: sqlite3.Connection) -> None:
    """Bring `db`, which is in no transaction, to `VERSION`. An interruption changes nothing."""
    db.execute("BEGIN EXCLUSIVE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for script in SCRIPTS[version and version - FIRST + 1 :]:
            for statement in script.split(";"):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
