"""The schema as SQLAlchemy sees it: what migrations are generated from and checked against."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, text

metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String),
    Column("state", String, nullable=False),
    Column("level", String, nullable=False),
    Column("backend", String, nullable=False),
    Column("template", String, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("limit_name", String),
    Column("reason", String),
    Column("deadline", Float, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("origin", String),
    Column("restoring", String),
    Column("workspace", LargeBinary),
    Column("layers", String, nullable=False, server_default=""),
    Column("incarnation", Integer, nullable=False, server_default=text("0")),
    Column("policy", String),
    Index(
        "one_living_name",
        "owner",
        "name",
        unique=True,
        sqlite_where=text("name IS NOT NULL AND state IN ('creating', 'restoring', 'running', 'paused')"),
    ),
    Index("sandboxes_by_state", "state"),
    Index("sandboxes_by_name", "owner", "name"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("owner", String, primary_key=True, nullable=False),
    Column("key", String, primary_key=True, nullable=False),
    Column("digest", String, nullable=False),
    Column("sandbox", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Index("idempotency_keys_by_sandbox", "sandbox"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String),
    Column("source", String, nullable=False),
    Column("template", LargeBinary, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("holder", String),
    Column("workspace", LargeBinary),
    Column("policy", String),
    Index("one_snapshot_name", "owner", "name", unique=True, sqlite_where=text("name IS NOT NULL")),
    Index("snapshots_by_source", "owner", "source"),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("holder", String),
    Column("url", String),
    Column("branch", String),
    Column("oid", String),
    Column("observed_at", Float),
    Column("repository", String),
    Column("base", String),
    Column("layers", String, nullable=False),
    Column("sandbox", String),
    Column("epoch", Integer, nullable=False),
    Column("disk_mib", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("pinned_until", Float),
    Column("kept", LargeBinary),
    Index("one_workspace_name", "owner", "name", unique=True),
    Index("workspaces_by_sandbox", "sandbox"),
)

policies = Table(
    "policies",
    metadata,
    Column("revision", String, primary_key=True, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Column("kept_at", Float, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True, nullable=False),
    Column("holder", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("expires_at", Float, nullable=False),
)

repositories = Table(
    "repositories",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("scope", String, nullable=False),
    Column("url", String, nullable=False),
    Column("head", String),
    Column("observed_at", Float),
    Column("observed_boot", String),
    Column("observed_clock", Float),
    Column("used_at", Float, nullable=False),
    Index("one_repository_per_scope", "scope", "url", unique=True),
)

repository_refs = Table(
    "repository_refs",
    metadata,
    Column("repository", String, primary_key=True, nullable=False),
    Column("name", String, primary_key=True, nullable=False),
    Column("oid", String, nullable=False),
    Column("commit_id", String),
    Index("repository_refs_by_commit", "repository", "commit_id"),
)

bases = Table(
    "bases",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("repository", String, nullable=False),
    Column("commit_id", String, nullable=False),
    Column("branch", String, nullable=False),
    Column("holder", String),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Index("one_base", "repository", "commit_id", "branch", unique=True),
)

workshops = Table(
    "workshops",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("holder", String, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("owner", String, primary_key=True, nullable=False),
    Column("of_id", String, primary_key=True, nullable=False),
    Column("kind", String, primary_key=True, nullable=False),
    Column("name", String, primary_key=True, nullable=False),
    Column("of_name", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("path", String),
    Column("bytes", Integer),
    Column("is_tree", Integer),
    Column("created_at", Float, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("owner", String, primary_key=True, nullable=False),
    Column("name", String, primary_key=True, nullable=False),
    Column("version", Integer, nullable=False),
    Column("key", String, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("used_at", Float),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", String, primary_key=True, nullable=False),
    Column("owner", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("sandbox", String, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("revision", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("summary", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("deadline", Float, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("decided_at", Float),
    Column("decided_by", String),
    Column("reason", String),
    Column("used_at", Float),
    Index("approvals_by_sandbox", "owner", "sandbox", "digest"),
)
