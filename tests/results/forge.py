"""A forge for tests: what GitHub's and Gitea's published API descriptions say about pull requests, over HTTP.

GitHub: github/rest-api-description, `pulls/list` and `pulls/create` (2022-11-28). Gitea and Forgejo: `v1_json.tmpl`,
`repoListPullRequests`, `repoCreatePullRequest`, `getVersion`. What these do with a request that is wrong, this does;
and whatever a description does not name is refused, in a query and in a body.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OWNER, NAME, TOKEN = "octo", "hello", "t0ken"

_QUERY = {
    "github": {"state", "head", "base", "sort", "direction", "per_page", "page"},
    "gitea": {"state", "sort", "milestone", "labels", "poster", "page", "limit"},
}
_BODY: dict[str, dict[str, type]] = {
    "github": {
        **{"title": str, "head": str, "head_repo": str, "base": str, "body": str, "maintainer_can_modify": bool},
        **{"draft": bool, "issue": int},
    },
    "gitea": {
        **{"title": str, "head": str, "base": str, "body": str, "assignee": str, "assignees": list, "due_date": str},
        **{"labels": list, "milestone": int, "reviewers": list, "team_reviewers": list},
    },
}
# The most that a page holds: GitHub's own, and the default of `MAX_RESPONSE_ITEMS`, which an administrator may lower.
_PAGE = {"github": 100, "gitea": 50}


class Contract:
    """What a forge answers, without the server. `requests` holds what came: method, path with query, headers, body;
    `pulls` what it has; `token` what it takes."""

    def __init__(self, dialect: str, prefix: str = "", token: str = TOKEN) -> None:
        self.dialect, self.prefix, self.token = dialect, prefix, token
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.pulls: list[dict[str, Any]] = []
        self.branches = {"main", "topic"}
        self.page, self.archived, self.filters = _PAGE[dialect], False, True

    def respond(self, method: str, target: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        self.requests.append((method, target, headers, body))
        parts, query = urlsplit(target), {k: v[0] for k, v in parse_qs(urlsplit(target).query).items()}
        api = {"github": "/api/v3", "gitea": f"{self.prefix}/api/v1"}[self.dialect]
        if not parts.path.startswith(api):
            return 404, {"message": "Not Found"}
        path = parts.path.removeprefix(api)
        if path in ("/version", "/meta"):
            assert "authorization" not in headers
            known = (path == "/version") is (self.dialect == "gitea")
            return (
                (200, {"version": "1.22.3"} if path == "/version" else {"installed_version": "3.12.0"})
                if known
                else (404, {})
            )
        if not self._let(headers):
            return 401, {"message": "Bad credentials"}
        if undescribed := self._undescribed(method, query, headers, body):
            return 400, {"message": f"the description does not have {undescribed}"}
        match method, path.removeprefix(f"/repos/{OWNER}/{NAME}"):
            case "GET", "":
                return 200, {"default_branch": "main", "name": NAME}
            case "GET", "/pulls":
                return 200, self._list(query)
            case "POST", "/pulls":
                return self._create(body)
            case _:
                return 404, {"message": "Not Found"}

    def add(self, head: str, base: str, title: str, *, fork: bool = False, state: str = "open") -> dict[str, Any]:
        owner = "stranger" if fork else OWNER
        number = len(self.pulls) + 1
        side: dict[str, Any] = {"ref": head, "sha": "a" * 40, "repo": None}
        if self.dialect == "gitea":
            side["repo_id"] = 2 if fork else 1
        side["label"] = _label(self.dialect, owner, head)
        here = {} if self.dialect == "github" else {"repo_id": 1}
        pull = {
            "number": number,
            "html_url": f"https://forge.example/{OWNER}/{NAME}/pulls/{number}",
            "title": title,
            "state": state,
            # What may be null by the description is null.
            **dict.fromkeys(("body", "merged_at", "closed_at", "milestone", "assignee", "merge_commit_sha", "user")),
            "head": side,
            "base": {**side, **here, "ref": base, "sha": "b" * 40, "label": _label(self.dialect, OWNER, base)},
        }
        self.pulls.append(pull)
        return pull

    def _undescribed(self, method: str, query: dict[str, str], headers: dict[str, str], body: Any) -> str:
        if not headers.get("user-agent") or "application/json" not in headers.get("accept", ""):
            return "a request without User-Agent and Accept"
        if query.get("state", "open") not in ("open", "closed", "all") or not set(query) <= _QUERY[self.dialect]:
            return f"the query {query}"
        if method == "POST" and headers.get("content-type") != "application/json":
            return "a body that is not JSON"
        kinds = _BODY[self.dialect]
        wrong = [name for name, value in (body or {}).items() if name not in kinds or type(value) is not kinds[name]]
        return f"the fields {wrong}" if wrong else ""

    def _let(self, headers: dict[str, str]) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if self.dialect == "github":
            return scheme in ("Bearer", "token") and value == self.token
        basic = scheme == "Basic" and base64.b64decode(value).decode().endswith(f":{self.token}")
        return basic or (scheme in ("Bearer", "token") and value == self.token)

    def _list(self, query: dict[str, str]) -> list[dict[str, Any]]:
        found = [p for p in self.pulls if query.get("state", "open") in ("all", p["state"])]
        if self.dialect == "github" and self.filters:
            if ":" in query.get("head", ""):  # another form of it is ignored
                found = [p for p in found if p["head"]["label"] == query["head"]]
            if "base" in query:
                found = [p for p in found if p["base"]["ref"] == query["base"]]
        size = min(int(query.get("per_page", query.get("limit", 30))), self.page)
        page = int(query.get("page", 1))
        return found[size * (page - 1) : size * page]

    def _create(self, body: dict[str, Any]) -> tuple[int, Any]:
        head, base = body["head"], body["base"]
        if self.dialect == "gitea" and self.archived:
            return 423, {"message": "Repo is archived", "url": "http://x/api/swagger"}
        if self.dialect == "github" and self.archived:
            return 403, {"message": "Repository was archived so is read-only.", "documentation_url": "x"}
        if self.dialect == "github" and head == base:
            said = {"resource": "PullRequest", "code": "custom", "message": f"No commits between {base} and {head}"}
            return 422, {"message": "Validation Failed", "errors": [said], "documentation_url": "x", "status": "422"}
        if self.dialect == "gitea" and head == base:
            return 422, {"message": "Invalid PullRequest: There are no changes between the head and the base"}
        same = [
            p
            for p in self.pulls
            if p["state"] == "open"
            and (p["head"]["ref"], p["base"]["ref"]) == (head, base)
            and p["head"].get("repo_id", 1) == 1
            and not p["head"]["label"].startswith("stranger:")
        ]
        if self.dialect == "github":
            if head not in self.branches:
                errors: list[Any] = [{"resource": "PullRequest", "field": "head", "code": "invalid"}]
                return 422, {"message": "Validation Failed", "errors": errors}
            if same:
                errors = [
                    {
                        "resource": "PullRequest",
                        "code": "custom",
                        "message": f"A pull request already exists for {OWNER}:{head}.",
                    }
                ]
                return 422, {"message": "Validation Failed", "errors": errors}
        else:
            if head not in self.branches or base not in self.branches:
                return 404, {"message": "The target couldn't be found.", "errors": [], "url": "http://x/api/swagger"}
            if same:
                return 409, {"message": f"pull request already exists for these targets [id: {same[0]['number']}]"}
        return 201, self.add(head, base, body["title"])


def _label(dialect: str, owner: str, branch: str) -> str:
    """GitHub's has the owner in front, Gitea's has not."""
    return f"{owner}:{branch}" if dialect == "github" else branch


class ForgeServer(Contract):
    """The same over HTTP."""

    def __init__(self, dialect: str, prefix: str = "") -> None:
        super().__init__(dialect, prefix)
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        """Given instead of every other answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{prefix}/{OWNER}/{NAME}.git"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        forge = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {k.lower(): v for k, v in self.headers.items()}
                if forge.answer is not None:
                    forge.requests.append((self.command, self.path, headers, body))
                    status, extra, data = forge.answer
                else:
                    status, document = forge.respond(self.command, self.path, headers, body)
                    extra, data = {"Content-Type": "application/json"}, json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**extra, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
