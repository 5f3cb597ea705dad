"""Scripts that record the state of a directory in a sandbox, apply a patch to it, and report its changes.

They use git in the sandbox, with a separate repository beside the directory. Of the directory's own `.git` they use
only the objects, which saves copies, and the list of ignored files.
"""

from __future__ import annotations

DIFF_BYTES = 16 << 20

ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}

# Attributes in the directory could change the recorded or reported content. `info/attributes` takes precedence over
# them.
RECORD = r"""
set -eu
export GIT_DIR="$HOME/.paddock/state.git"
command -v git >/dev/null || { echo "there is no git in this template" >&2; exit 127; }
rm -rf "$GIT_DIR"
mkdir -p "${GIT_DIR%/*}"
git init -q --template= "$GIT_DIR"
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info"
git config core.bare false
git config core.autocrlf false
git config core.trustctime false
git config core.checkStat minimal
git config gc.auto 0
git config advice.addEmbeddedRepo false
git config core.excludesFile "$PWD/.git/info/exclude"
echo '* -text -eol -filter -ident -working-tree-encoding' > "$GIT_DIR/info/attributes"
if [ -d .git/objects ] && [ -z "$(git config --file .git/config extensions.objectformat)" ]; then
    (cd .git/objects && pwd) > "$GIT_DIR/objects/info/alternates"
fi
printf '%s\n' '__pycache__/' '*.py[co]' > "$GIT_DIR/info/exclude"
# What its own git tracks is part of the state, ignored or not.
if [ -e .git/index ]; then
    GIT_INDEX_FILE=.git/index git ls-files -z -c -i --exclude-standard > "$GIT_DIR/tracked" || true
    git update-index --add --remove -z --stdin < "$GIT_DIR/tracked" || true
fi
git add -A --ignore-errors . || echo "some files could not be read: the result leaves them out" >&2
git write-tree
"""

APPLY = r"""
set -u
export GIT_DIR="$HOME/.paddock/state.git"
patch=$(mktemp)
cat > "$patch"
[ -s "$patch" ] || { echo nothing; exit 0; }
# With the index, so that a new file is part of the result even where it is ignored.
git apply --whitespace=nowarn --index "$patch" 2>/dev/null && { echo "git apply"; exit 0; }
said=$(git apply --whitespace=nowarn "$patch" 2>&1) && { echo "git apply"; exit 0; }
git apply --whitespace=nowarn --recount "$patch" 2>/dev/null && { echo "git apply --recount"; exit 0; }
if command -v patch >/dev/null && patch -p1 --dry-run -f -s < "$patch" >/dev/null 2>&1; then
    patch -p1 -f -s --no-backup-if-mismatch < "$patch" >/dev/null && { echo "patch, inexactly"; exit 0; }
fi
printf '%s\n' "$said" >&2
exit 1
"""

DIFF = r"""
set -eu
export GIT_DIR="$HOME/.paddock/state.git"
git add -A --ignore-errors . 2>/dev/null || true
exec git diff-tree -p --binary -M --no-color --no-ext-diff --no-textconv "$1" "$(git write-tree)"
"""
