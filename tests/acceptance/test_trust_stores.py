"""Programs inside trust their sandbox's authority without being told: by the system's bundle, by a variable, by Java's
own store. Each client calls a host over TLS that the gateway ends; a skip names a client that this machine has not."""

from __future__ import annotations

import shutil

import pytest

from paddock import Sandbox
from tests.conftest import SandboxFactory

from .rig import Internet

JAVA = """
import java.net.*;
public class T {
    public static void main(String[] a) throws Exception {
        System.out.print(new String(new URL("https://good.test/").openStream().readAllBytes()));
    }
}
"""
PYTHON = (
    "import urllib.request; print(urllib.request.urlopen('https://good.test/', timeout=60).read().decode(), end='')"
)
NODE = "fetch('https://good.test/').then(r => r.text()).then(t => process.stdout.write(t))"
RUBY = "require 'net/http'; print Net::HTTP.get(URI('https://good.test/'))"
PERL = "use HTTP::Tiny; my $r = HTTP::Tiny->new(verify_SSL => 1)->get('https://good.test/'); print $r->{content}"
PHP = "echo file_get_contents('https://good.test/');"
GO = """package main
import ("fmt"; "io"; "net/http")
func main() {
    r, e := http.Get("https://good.test/")
    if e != nil { panic(e) }
    b, _ := io.ReadAll(r.Body)
    fmt.Print(string(b))
}
"""

SAYS_HELLO = {
    "curl": "curl -sS -m 60 https://good.test/",
    "wget": "wget -q -T 60 -t 1 -O - https://good.test/",
    "python3": f'python3 -c "{PYTHON}"',
    "node": f'node -e "{NODE}"',
    "java": "cat > T.java && java -Xshare:auto -XX:TieredStopAtLevel=1 T.java",
    "ruby": f'ruby -e "{RUBY}"',
    "perl": f"perl -e '{PERL.replace(chr(39), chr(34))}'",
    "php": f'php -r "{PHP}"',
    "go": "cat > t.go && go run t.go",
    "deno": f'deno eval "{NODE}"',
}
"""What prints the answer of the site."""
CALLS = {
    "git": "git ls-remote https://good.test/repository.git",
    "pip": "python3 -m pip download --no-deps -i https://good.test/simple nothing",
    "npm": "npm view nothing --registry https://good.test/ --fetch-retries 0",
    "cargo": "cargo search --index sparse+https://good.test/ nothing",
}
"""What speaks a language that the site does not: that it has been asked is enough."""
BY_ITSELF = ("curl", "wget", "python3", "java", "ruby", "perl", "go")
"""Those that need no variable: they look where the system has its certificates."""


@pytest.fixture
def made(sandbox: SandboxFactory, internet: Internet) -> Sandbox:
    internet.site("good.test")
    return sandbox(policy={"egress": {"allow": [{"host": "good.test", "methods": ["GET"]}]}})


def _skip_without(made: Sandbox, client: str) -> None:
    if made.exec(f"command -v {client}").exit_code != 0:
        pytest.skip(f"{client} is not installed")
    if client == "perl" and made.exec("perl -MHTTP::Tiny -MIO::Socket::SSL -e 1").exit_code != 0:
        pytest.skip("perl is installed without IO::Socket::SSL")


@pytest.mark.parametrize(
    ("client", "environment"), [*((one, "its own") for one in SAYS_HELLO), *((one, "none") for one in BY_ITSELF)]
)
def test_a_client_takes_the_gateway_for_the_host(
    made: Sandbox, internet: Internet, client: str, environment: str
) -> None:
    _skip_without(made, client)
    clean = ("env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp") if environment == "none" else ()
    source = {"java": JAVA, "go": GO}.get(client, "")
    done = made.exec((*clean, "sh", "-c", SAYS_HELLO[client]), input=source, timeout_seconds=100)
    assert done.stdout == "hello", done
    assert len(internet.requests("good.test")) == 1


@pytest.mark.parametrize("client", CALLS)
def test_a_client_of_another_language_gets_to_the_host(made: Sandbox, internet: Internet, client: str) -> None:
    _skip_without(made, "python3" if client == "pip" else client)
    if client == "pip" and made.exec("python3 -m pip --version").exit_code != 0:
        pytest.skip("pip is not installed")
    made.exec(CALLS[client], timeout_seconds=100)
    assert internet.requests("good.test"), "it did not trust who answered"


def test_java_s_store_has_the_sandbox_s_authority_and_the_machine_s(made: Sandbox) -> None:
    if shutil.which("keytool") is None:
        pytest.skip("keytool is not installed")
    listed = made.exec("keytool -list -keystore /dev/ca-certificates.jks -storepass changeit", timeout_seconds=100)
    assert "sandbox-1" in listed.stdout, listed
    assert listed.stdout.count("trustedCertEntry") > 1


def test_chromium_takes_the_gateway_for_the_host(made: Sandbox, internet: Internet) -> None:
    """It has a list of its own, to which the policy of an administrator adds."""
    _skip_without(made, "chromium")
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    browser = f"chromium --headless --no-sandbox {quiet} --disable-sync --user-data-dir=/tmp/browser"
    done = made.exec(f"{browser} --dump-dom https://good.test/", timeout_seconds=100)
    assert "hello" in done.stdout, done
    assert internet.requests("good.test")
