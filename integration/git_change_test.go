package integration

// changeScenarios change files, the index and the branch that is checked out.
var changeScenarios = []scenario{
	{name: "add -A", steps: `
append README.md; rm docs/d00.md; chmod +x LICENSE; echo x >new; mkdir dir; echo x >dir/a; echo x >x.o; mv docs/d01.md docs/moved.md
git add -A
git status --short
git commit -q -m all; git show --stat --summary -M
`},
	{name: "add -u, add of one file, add -n", steps: `
append README.md; append docs/d00.md; rm docs/d02.md; echo x >new; echo x >x.o
git add -n .
git add README.md; git status --short
git add -u docs; git status --short
git add x.o none; git add -f x.o
git add .; git status --short
`},
	{name: "add -p", steps: `
edit src/m02/f02.c 3; edit src/m02/f02.c 30; append README.md
printf 'y\nn\nq\n' | git add -p
git diff --cached
git diff
`},
	{name: "add -N", steps: `
echo new >new; git add -N new
git status --short; git diff; git diff --cached
git commit -q -m none; git commit -q -a -m new; git show --stat
`},
	{name: "add of a directory that replaces a file, and back", steps: `
rm docs/d00.md; mkdir docs/d00.md; echo in >docs/d00.md/in
git add -A; git status --short; git commit -q -m dir
rm -r docs/d00.md; echo file >docs/d00.md; git add docs; git status --short
`},
	{name: "add of types and modes", steps: `
rm README.md link; ln -s LICENSE README.md; cp LICENSE link; chmod -x bin/run.sh; chmod +x docs/d00.md
git status --short; git diff --raw
git add -A; git ls-files -s README.md link bin/run.sh docs/d00.md
git commit -q -m types; git show --summary --format=
`},
	{name: "rm", steps: `
git rm -q docs/d00.md; git rm -q -r vendor/p1; git rm -q --cached docs/d01.md
append docs/d02.md; git rm docs/d02.md; git rm -q -f docs/d02.md
git rm none; git rm -n -r src/m01
git status --short; ls vendor
`},
	{name: "rm -r of everything", steps: `
git rm -q -r .
git status --short | wc -l; ls -a | grep -v '^\.git$'
git commit -q -m empty; git ls-files | wc -l
git revert --no-edit HEAD >/dev/null; git status --short; git diff HEAD~2 --stat
`},
	{name: "mv of an untouched file", steps: `
git mv README.md docs/README2.md; git mv bin/run.sh bin/ran.sh; git mv link docs/
git status --short; git commit -q -m moved; git show -M --summary --format=%s
cat docs/README2.md
`},
	{name: "mv of an untouched directory", steps: `
git mv src lib; git mv docs/d00.md lib/m00
git status --short | wc -l
git commit -q -m moved; git show -M --shortstat --format=%s
git mv lib/m05 sub; git mv lib src/deeper; git mv lib/m01 lib/m02; git status --short | wc -l
`},
	{name: "mv by the shell, found by status", steps: `
mv src/m03 src/m03-moved; mv docs/d00.md d00
git status --short
git add -A; git status --short; git commit -q -m moved; git show -M --summary --format=%s | wc -l
`},
	{name: "commit -a", steps: `
append README.md; rm docs/d00.md
git commit -a -m 'Changed' | tail -n +2
git status --short; git log --oneline -2; git diff --stat HEAD~1
`},
	{name: "commit of everything new", steps: `
mkdir new; for i in 1 2 3 4 5 6 7 8 9; do echo $i >new/$i; done
git add new; git commit -q -m new; git status --short --branch; git show --stat --format=%s
`},
	{name: "commit --amend", steps: `
append README.md; git commit -q -a -m one; append LICENSE
git commit -q -a --amend -m two; git show --stat --format=%s
git commit -q --amend --no-edit --reset-author; git commit -q --amend --date=@1700000001 --no-edit; git log -1 --format='%ad %cd %H'
`},
	{name: "commit --fixup, autosquash", steps: `
append README.md; git commit -q -a -m one; append LICENSE; git commit -q -a -m two
append README.md; git commit -q -a --fixup HEAD~1; git log --oneline -3
git rebase -q -i --autosquash HEAD~3; git log --format=%s -3 --stat
`},
	{name: "commit of parts, empty, refused", steps: `
append README.md; append LICENSE; echo x >x
git commit -q -m part README.md; git status --short
git commit -q --allow-empty -m empty; git commit -m nothing
git commit -q -m include -i LICENSE; git add x; git commit -q --dry-run -m x; git commit -q -F - <LICENSE; git log --stat -2
`},
	{name: "commit with hooks", steps: `
h=$(git rev-parse --git-path hooks); mkdir -p "$h"; printf '#!/bin/sh\ngit diff --cached --name-only; exit 1\n' >"$h/pre-commit"; chmod +x "$h/pre-commit"
append README.md; git commit -q -a -m refused; h=$(git rev-parse --git-path hooks); git commit -q -a -n -m taken
h=$(git rev-parse --git-path hooks); printf '#!/bin/sh\necho "Hook: yes" >>"$1"\n' >"$h/commit-msg"; chmod +x "$h/commit-msg"; rm "$h/pre-commit"
append README.md; git commit -q -a -m hooked; git log -2 --format=%B
`},
	{name: "reset --soft, --mixed", steps: `
append README.md; echo x >new; git add -A; git commit -q -m one
git reset --soft HEAD~1; git status --short
git reset; git status --short
git reset -q HEAD~2; git status --short; git diff --stat
git reset -q ORIG_HEAD; git status --short
`},
	{name: "reset --hard", steps: `
append README.md; rm docs/d00.md; echo x >new; git add new; echo x >untracked
git reset --hard
git status --short
git reset --hard HEAD~1; git status --short; git reset --hard v1.0; git reset --hard @{u}; git status --short --branch
`},
	{name: "reset --hard to a far commit", steps: `
git reset -q --hard origin/far; git status --short; ls; git reset -q --hard origin/main; git status --short
`},
	{name: "reset --keep, --merge", steps: `
append README.md; git reset --keep HEAD~1; git status --short
append src/m02/f02.c; git reset --keep HEAD~1; git status --short
git add README.md; git reset --merge; git status --short
`},
	{name: "reset of paths", steps: `
append README.md; append LICENSE; git add -A; git reset README.md; git status --short
git reset -q HEAD~5 -- docs; git status --short; git diff --cached --stat
printf 'y\n' | git reset -p LICENSE; git status --short
`},
	{name: "restore", steps: `
append README.md; rm docs/d00.md; rm -r src/m03; append LICENSE; git add LICENSE
git restore README.md docs; git status --short
git restore --staged LICENSE; git restore .; git status --short
git restore --source=HEAD~5 docs; git status --short; git restore -s HEAD~5 --staged --worktree docs; git status --short
git restore --source=origin/topic --staged --worktree -- topic.txt; git status --short
`},
	{name: "checkout of paths", steps: `
append README.md; rm -r src/m03; git checkout README.md; git checkout -- src; git status --short
git checkout HEAD~4 -- src docs; git status --short
git checkout origin/far -- far; git checkout none; git status --short
`},
	{name: "stash, pop", steps: `
append README.md; rm docs/d00.md; git add docs; echo x >new
git stash; git status --short; git stash list
git stash show -p; git stash pop; git status --short
git stash -u -m untracked -q; git status --short; git stash show --stat -u; git stash pop --index -q; git status --short
`},
	{name: "stash apply, drop, branch, -k, -p", steps: `
append README.md; git add README.md; append LICENSE
git stash push -k -q; git status --short; git stash apply -q; git stash drop -q; git reset -q --hard
append LICENSE; git stash push -q -- LICENSE; append README.md; git stash -q; git stash list
git stash branch work stash@{1}; git status --short --branch
git commit -q -a -m work; edit README.md 30; git commit -q -a -m other; git stash pop; git status --short; git diff
`},
	{name: "clean", steps: `
echo x >new; mkdir -p dir/sub build; echo x >dir/sub/a; echo x >build/o; echo x >x.o; append README.md
git clean -n; git clean -nd; git clean -ndx; git clean -ndX
git clean -f; git status --short --ignored
git clean -fdx; git status --short --ignored
rm -rf docs; mkdir docs; echo x >docs/new; git clean -fdq; git status --short | wc -l; git checkout -q docs; git status --short
`},
	{name: "update-index", steps: `
append README.md; git update-index --assume-unchanged README.md; git status --short; git ls-files -v README.md; git update-index --no-assume-unchanged README.md; git status --short
rm LICENSE; git update-index --skip-worktree LICENSE; git status --short; git update-index --no-skip-worktree LICENSE; git status --short
git update-index --chmod=+x Makefile; git diff --cached --raw; git diff --raw
git update-index --add --cacheinfo 100644,$(git rev-parse HEAD:LICENSE),copy; git update-index --force-remove docs/d00.md; git status --short
git update-index --again; git update-index --refresh
`},
	{name: "update-index --really-refresh", steps: `
touch src/m00/*; git update-index --really-refresh; git status --short
`},
	{name: "read-tree, write-tree, commit-tree", steps: `
git write-tree
append README.md; git add README.md; t=$(git write-tree); c=$(git commit-tree -p HEAD -m plumbing $t); echo $t $c; git update-ref -m moved HEAD $c; git status --short
git read-tree HEAD~1; git status --short; git read-tree --reset -u HEAD~3; git status --short
git read-tree --prefix=copied/ HEAD:docs; git status --short | wc -l; git checkout-index -a -f; git status --short | wc -l
git read-tree --empty; git ls-files; git reset -q; git status --short | wc -l
`},
	{name: "separate index file", steps: `
export GIT_INDEX_FILE="$(git rev-parse --git-dir)/other"; git read-tree HEAD; echo x >new; git add -A; git write-tree; git status --short
git status --short
`},
	{name: "hash-object, mktree, unpack", steps: `
git hash-object README.md LICENSE
echo content | git hash-object -w --stdin; git hash-object -w --path crlf/new.bat crlf/a.bat
printf '100644 blob %s\tfile\n' $(git rev-parse HEAD:LICENSE) | git mktree --missing
git rev-parse HEAD:docs | xargs git ls-tree | git mktree --missing
`},
	{name: "update-ref, symbolic-ref", steps: `
git update-ref refs/heads/main HEAD~2; git status --short --branch
git update-ref refs/heads/other HEAD~1; git symbolic-ref HEAD refs/heads/other; git status --short --branch
git symbolic-ref HEAD; git update-ref -d refs/heads/main; git update-ref --no-deref HEAD origin/main; git status --short --branch
`},
	{name: "line endings and $Id$", steps: `
cat crlf/a.bat ident/x.id
printf 'added\r\n' >>crlf/a.bat; echo more >>ident/x.id; git status --short; git diff
git commit -q -a -m converted; cat ident/x.id; rm ident/x.id crlf/a.bat; git checkout -q -- ident crlf; cat crlf/a.bat ident/x.id; git status --short
`},
	{name: "attributes change", steps: `
echo '*.md text eol=crlf' >>.gitattributes; git status --short; git add --renormalize .; git status --short
rm docs/d00.md; git checkout docs/d00.md; touch -d @1740000000 docs/d00.md; head -c 40 docs/d00.md | od -c | head -2; git commit -q -a -m attributes; git status --short
git checkout -q -f HEAD~1; git status --short; git checkout -q main; git status --short
`},
	{name: "files written by programs", steps: `
cp README.md copy; cp -a src/m00 src/copy; sed -i s/line/LINE/ LICENSE; dd if=/dev/zero of=docs/d00.md bs=10 count=1 conv=notrunc 2>/dev/null; truncate -s 5 docs/d01.md
ln docs/d02.md hard; : >docs/d03.md; mkfifo fifo; mv fifo docs/
git status --short; git add -A; git status --short; git commit -q -m programs; git status --short
`},
	{name: "working tree removed and restored", steps: `
rm -rf *; git status --short | wc -l; git checkout -q .; git status --short
rm -rf .gitattributes docs src; git stash -q; git status --short; git stash drop -q
`},
	{name: "changes, everything fetched before", warm: true, steps: `
append README.md; edit src/m03/f03.c; git commit -q -a -m one; git stash list; append LICENSE; git stash -q; git stash pop -q
git checkout -q -b work; git reset -q --hard HEAD~1; git status --short --branch
`},
}
