"""The meaning of `paddock.yaml`: from text to document, to snapshot, to verdicts."""

from ._addresses import far_end as far_end
from ._addresses import is_public as is_public
from ._addresses import parse_address as parse_address
from ._canonical import index_variables as index_variables
from ._diff import Change as Change
from ._diff import Outcome as Outcome
from ._diff import diff as diff
from ._explain import Explanation as Explanation
from ._explain import NearMiss as NearMiss
from ._explain import explain as explain
from ._load import Loaded as Loaded
from ._load import Source as Source
from ._load import load as load
from ._load import to_yaml as to_yaml
from ._mocks import write_cassette as write_cassette
from ._names import NotAName as NotAName
from ._names import canonical_name as canonical_name
from ._paths import normal_path as normal_path
from ._schema import schema as schema
from ._snapshot import Snapshot as Snapshot
from ._snapshot import compile as compile
