from offline import Sandbox, generate_n_fixes  # offline stand-ins; with a network: from paddock import Sandbox
import concurrent.futures as cf
# 1) Warm ONE environment: clone, install, load the dataset. Pay setup once.
base = Sandbox.create(template="code-interpreter", persistent=True, ttl_seconds=1800)
base.exec("git clone --depth 1 https://example.com/repo /workspace/repo")
base.exec("cd /workspace/repo && pip install -r requirements.txt", timeout_seconds=300)
candidate_patches = generate_n_fixes(n=5) # 5 different model attempts
def try_patch(patch: str) -> dict:
    # 2) Fork the warm env. Each child inherits the install.
    child = base.fork()
    try:
        child.filesystem.write("/workspace/repo/fix.patch", patch)
        child.exec("cd /workspace/repo && git apply fix.patch")
        r = child.exec("cd /workspace/repo && pytest -q", timeout_seconds=120)
        return {"patch": patch, "passed": r.exit_code == 0, "out": r.stdout[-1000:]}
    finally:
        child.kill() # branches are disposable; the trunk lives on
# 3) Explore all five branches in parallel. Keep the winners.
with cf.ThreadPoolExecutor(max_workers=5) as pool:
    results = list(pool.map(try_patch, candidate_patches))
base.kill()
winners = [r["patch"] for r in results if r["passed"]]
print(f"{len(winners)}/5 candidate fixes passed the test suite")
