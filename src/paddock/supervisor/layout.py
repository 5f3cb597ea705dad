"""The state directory: what lies where. Everything in it is private to one uid (0700).

paddock.db            control state (SQLite, WAL)
audit/                hash-chained segments, one per writer, and the signed heads of all
audit.key             what signs them, unless it is kept elsewhere (0600)
prepare.lock          held while storage decides how the pool is kept
supervisor.json           how the supervisor is to open the pool; written once by storage
supervisor.lock           held by the living supervisor
supervisor.sock           its socket
supervisor.log            its last words
gateway.lock          held by the living gateway; gateway.sock is its socket, gateway.log has its last words
world.sock            who answers to the gateway in the place of the network, where there is such a one; world.pem is
                      whom it trusts then. Only evaluations have them
pool/                 trees: directories, or where the supervisor's own mount namespace has the pool mounted
repositories/<id>     bare git repositories, which sandboxes only read
pool.btrfs            sparse image, where the pool is a loop device
templates/            locks of templates: who builds one, who uses one
images/               which OCI images there are, and what of one is just being fetched
run/<sandbox>/        state.json, init.sock, user.sock, root.sock: the live sandbox, found by any later service; with
                      exits trust.pem and trust.jks, the certificates that programs inside trust
containers/<sandbox>/ a live container: record.json, init.sock, user.sock, root.sock; birth/ is shown inside, and has
                      trust.pem and its like, with exits; containers/guest/ is what they run
artifacts/            contents that were taken out of workspaces, by their digest
malware/              indexes of the lists of malware that policies name, by the digest of their path
packages/             files of registries that sandboxes have fetched; only the gateway writes there
kept/<workspace>      archives of workspaces that were evicted from the pool
garbage.lock          held while a daemon collects garbage
outputs/<sandbox>/    what execs printed beyond what a result holds
config.toml           what the owner has set for every program that uses the directory
levels.json           figures by which earlier releases chose a level; deleted
vault.key             what the keys of secrets are wrapped with, unless it is kept elsewhere (0600)
vault.lock            held while a secret is sealed, or that key changed
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# Files of trees are stored with these owners (root mode): far from the uids of people, so that a set-user-id
# file in a tree never is one of root's, and equal for all sandboxes, so that a fork needs no chown.
TREE_ID_BASE = 0x7000_0000
# The uid of an ordinary user inside a sandbox.
ORDINARY_ID = 1000
ID_COUNT = 65536
# Sandboxes run with uids `range_base(slot) + id`; idmapped mounts translate. Ids from 2**31 on are negative to some
# programs (systemd's UIDS-GIDS.md).
RUN_ID_BASE = 0x6000_0000
# The kernel finds a user in a table of 128 chains, by the sum of a uid and its 128th part (kernel/user.c). If ranges
# began at multiples of 65,536, all sandboxes would share a chain, and each change of a uid would walk through it.
RANGE_STRIDE = ID_COUNT + 1
_TREE_IDS = 0x0100_0000
MOST_RANGES = (0x8000_0000 - RUN_ID_BASE - _TREE_IDS) // RANGE_STRIDE
# For how long a paused sandbox is kept where `config.toml` says nothing.
RETENTION_SECONDS = 30 * 86_400.0


def range_base(slot: int) -> int:
    """Return the first id of range `slot`, from 0 to MOST_RANGES - 1. They leave out the ids of trees."""
    below = RUN_ID_BASE + slot * RANGE_STRIDE
    return below if below + ID_COUNT <= TREE_ID_BASE else below + _TREE_IDS


DATABASE = "paddock.db"
AUDIT = "audit"
AUDIT_KEY = "audit.key"
SUPERVISOR_CONFIG = "supervisor.json"
SUPERVISOR_LOCK = "supervisor.lock"
SUPERVISOR_SOCKET = "supervisor.sock"
SUPERVISOR_LOG = "supervisor.log"
GATEWAY_LOCK = "gateway.lock"
GATEWAY_SOCKET = "gateway.sock"
GATEWAY_LOG = "gateway.log"
WORLD_SOCKET = "world.sock"
WORLD_TRUST = "world.pem"
POOL = "pool"
REPOSITORIES = "repositories"
POOL_IMAGE = "pool.btrfs"
IMAGES = "images"
RUN = "run"
TRUST = "trust.pem"
TRUST_JAVA = "trust.jks"
TRUST_CHROMIUM = "trust.json"
OUTPUTS = "outputs"
CONTAINERS = "containers"
CONTAINER_RECORD = "record.json"
CONTAINER_SHOWN = "birth"
ARTIFACTS = "artifacts"
KEPT = "kept"
MALWARE = "malware"
PACKAGES = "packages"
LEVELS = "levels.json"
VAULT_KEY = "vault.key"

# Sandboxes that a supervisor holds ready while it has work; "spares" in SUPERVISOR_CONFIG says otherwise.
DEFAULT_SPARES = 2


def default_state_dir() -> Path:
    """Return the default state directory as a Path, which takes long to import."""
    from pathlib import Path

    return Path(default_state())


def default_state() -> str:
    """Return PADDOCK_STATE_DIR; else the system's for root, and the user's own for other users."""
    if directory := os.environ.get("PADDOCK_STATE_DIR"):
        return os.path.join(os.getcwd(), directory)
    if os.geteuid() == 0:
        return "/var/lib/paddock"
    state = os.environ.get("XDG_STATE_HOME", "")
    return os.path.join(state if os.path.isabs(state) else os.path.expanduser("~/.local/state"), "paddock")
