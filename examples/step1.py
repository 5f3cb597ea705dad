from paddock import Sandbox
# The model wrote this. We do not trust it. That's the point.
model_code = """
import sys, platform
print('hello from', platform.node())
print('python', sys.version.split()[0])
# A model might also try `import os; os.system('rm -rf /')` here.
# In a sandbox, that deletes files we're about to throw away. Shrug.
"""
# create() takes a jail from a warm pool: a few milliseconds. `paddock doctor` shows the isolation levels.
with Sandbox.create(template="code-interpreter", ttl_seconds=120) as sbx:
    sbx.filesystem.write("/workspace/cell.py", model_code)
    result = sbx.exec("python3 /workspace/cell.py", timeout_seconds=30)
    print("exit:", result.exit_code)
    print(result.stdout)
# Context manager exits -> the sandbox and all of its processes and files are destroyed.
