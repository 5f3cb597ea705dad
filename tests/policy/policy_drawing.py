"""Hypothesis draws policy documents and what is asked of them: few names, so that rules meet."""

from __future__ import annotations

from hypothesis import strategies as st

from paddock.model import Allow, Approve, Deny, EgressRules, Mock, PolicyDocument

NAMES = ["a.test", "b.a.test", "c.b.a.test", "x.test", "y.x.test", "github.test", "pypi.org"]
HOSTS = ["a.test", "b.a.test", "*.a.test", "*.b.a.test", "x.test", "*.x.test"]
PORTS = [1, 80, 81, 443, 444, 65535]
METHODS = ["GET", "POST", "PUT"]
ADDRESSES = [
    *("8.8.8.8", "9.9.9.9", "10.0.0.1", "10.1.0.1", "127.0.0.1", "169.254.169.254", "169.254.1.1", "192.168.0.1"),
    *("::1", "fd00:ec2::254", "fd00::1", "2606:2800::1", "::ffff:10.0.0.1", "::ffff:8.8.8.8"),
]
NETWORKS = [
    *("0.0.0.0/0", "8.0.0.0/7", "8.8.8.8/32", "10.0.0.0/8", "10.0.0.0/16", "127.0.0.1/32", "169.254.0.0/16"),
    *("169.254.169.254/32", "::/0", "fd00::/8", "fd00:ec2::254/128", "2606:2800::/32", "::1/128"),
]
PATTERNS = ["/a", "/a/*", "/a/**", "/**", "/*/b", "/a%2Fb", "/b/c"]
PATHS = ["/", "/a", "/a/", "/a/b", "/a/b/c", "/b/c", "/a%2Fb", "/a%2Fb/c", "/a?x=1", "/a/%20", "/B"]

_ports = st.none() | st.lists(
    st.sampled_from([80, 443, 444, "80-443", "1-65535"]), min_size=1, max_size=2, unique=True
).map(tuple)
_methods = st.none() | st.lists(st.sampled_from(METHODS), min_size=1, max_size=2, unique=True).map(tuple)
_paths = st.none() | st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True).map(tuple)
_hosts = st.sampled_from(HOSTS)
_networks = st.sampled_from(NETWORKS)

allows = (
    st.builds(Allow, host=_hosts, ports=_ports, methods=_methods, paths=_paths)
    | st.builds(Allow, host=_hosts, ports=_ports)
    | st.builds(Allow, cidr=_networks, ports=_ports.filter(bool))
    | st.builds(Allow, registry=st.just("pypi"))
    | st.builds(
        Allow,
        git=st.sampled_from(["https://github.test/o/n", "https://github.test/o/m"]),
        fetch=st.none() | st.just(True),
        push=st.none() | st.just(("refs/heads/x",)),
    )
)
denies = st.builds(Deny, host=_hosts | st.just("*.test"), ports=_ports, methods=_methods, paths=_paths) | st.builds(
    Deny, cidr=_networks, ports=_ports
)
mocks = st.builds(Mock, host=_hosts, ports=_ports, methods=_methods, paths=_paths)
approves = st.builds(Approve, host=_hosts, ports=_ports, methods=_methods, paths=_paths)

documents = st.builds(
    PolicyDocument,
    egress=st.builds(
        EgressRules,
        allow=st.lists(allows, max_size=5).map(tuple),
        deny=st.lists(denies, max_size=2).map(tuple),
        mock=st.lists(mocks, max_size=1).map(tuple),
    ),
    approve=st.lists(approves, max_size=2).map(tuple),
)
GIT_PATHS = [
    f"/o/n{suffix}/{end}"
    for suffix in ("", ".git")
    for end in ("info/refs?service=git-upload-pack", "info/refs?service=git-receive-pack", "git-receive-pack", "x")
]
