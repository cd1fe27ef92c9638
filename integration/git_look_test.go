package integration

// lookScenarios only look, at files and at history.
var lookScenarios = []scenario{
	{name: "status, nothing changed", steps: `
git status --short --branch
git status --porcelain=v2 --branch
git status
`},
	{name: "status, all kinds of change", steps: `
append README.md; rm docs/d00.md; chmod +x LICENSE; echo x >new; mkdir dir; echo x >dir/a; echo x >ignored.o; mkdir build; echo x >build/out
ln -sf CHANGES link; git rm -q docs/d01.md; echo staged >staged; git add staged; echo more >>staged
git status --short
git status --porcelain=v2 --branch --ignored
git status --short -uno
git status --short -uall
git status --short -z -- dir docs
git status
`},
	{name: "status in a directory, and with other settings", steps: `
append src/m00/f00.c; echo x >src/m00/new.c
cd src/m00 && git status --short && git status
git -C docs status --short .
git -c status.relativePaths=false -C src status --short
git -c core.quotePath=false status --short
git -c status.showUntrackedFiles=all -c status.branch=true status --short
`},
	{name: "status, touched but unchanged", steps: `
touch README.md docs/*.md bin/run.sh
git status --short
git diff-files --name-only
git update-index --refresh
git diff-files --name-only
`},
	{name: "diff, nothing changed", steps: `
git diff
git diff --cached
git diff HEAD --stat
git diff --quiet
`},
	{name: "diff of the working tree", steps: `
edit src/m03/f03.c 20; append README.md; printf '\000x' >>data/blob.bin; chmod +x LICENSE; ln -sf CHANGES link
git diff
git diff --stat --summary
git diff --numstat
git diff --name-status
git diff --word-diff -- README.md
git diff --binary -- data
git diff --exit-code
git diff HEAD -- src
`},
	{name: "diff of the index", steps: `
edit src/m03/f03.c; git add -u; edit src/m03/f03.c 9; git rm -q docs/d02.md
git diff --cached
git diff
git diff HEAD
git diff --cached --stat
`},
	{name: "diff of whitespace", steps: `
sed -i 's/line 3 of/line  3 of/; s/$/ /' docs/d06.md
git diff -w
git diff -b --stat
git diff --ignore-space-at-eol -- docs
git diff --check
`},
	{name: "diff of two commits", steps: `
git diff main~3 main
git diff origin/topic...origin/conflict
git diff --name-status -M main origin/renames
git diff --name-status -C --find-copies-harder main~3 origin/topic
git diff --stat main origin/types
git diff --raw -r main origin/types
git diff main:README.md main:LICENSE
`},
	{name: "diff of far commits, names only", steps: `
git diff --name-status --no-renames main origin/far
git diff --raw --no-renames main origin/far
git diff-tree -r --no-renames main origin/far
`},
	{name: "diff of far commits, contents", steps: `
git diff main origin/far
git diff --shortstat main origin/far
`},
	{name: "diff of untracked files", steps: `
echo new >new
git diff --no-index README.md new
git diff --no-index docs docs
`},
	{name: "log", steps: `
git log --oneline -5
git log --format='%H %an %ad %s%d' --date=iso
git log --graph --oneline --all
git log --oneline --first-parent --no-merges main
git shortlog -s HEAD
git rev-list --count --all
`},
	{name: "log of a path", steps: `
git log --oneline -- src/m00/f00.c
git log --format=%s -- docs
git log --oneline --full-history --simplify-merges -- side.txt
git log --oneline --diff-filter=A --name-only -- src/new.c
`},
	{name: "log -p of a file with many versions", steps: `
git log -p -- src/m00/f00.c
`},
	{name: "log -p -20", steps: `
git log -p -20
`},
	{name: "log --stat", steps: `
git log --stat -8
git log --numstat -3 --format=%h
`},
	{name: "log -S and -G", steps: `
git log -S'9, changed' --oneline
git log -G'revised in 7' --oneline --name-only
git log --grep='Revision 1[0-3]' --oneline
`},
	{name: "log --follow", steps: `
git log --follow --oneline --name-status -- docs/new-name.md
`},
	{name: "log -L", steps: `
git log -L3,6:src/m00/f00.c --oneline
`},
	{name: "log -M of renames", steps: `
git log -M --name-status --format=%s main..origin/renames
git log --raw --format=%s main~2..main
`},
	{name: "reflog", steps: `
git commit -q --allow-empty -m one; git commit -q --allow-empty -m two
git reflog
git log -g --format='%gd %gs' -2
git rev-parse HEAD@{1} main@{2} @{u} @{-1}
git show --no-patch --format=%s HEAD@{1}
`},
	{name: "show", steps: `
git show
git show --stat HEAD~1
git show v1.0
git show v1.0^{tree}
git show HEAD:README.md
git show HEAD:src/m00
git show -m --stat v1.0
`},
	{name: "cat-file", steps: `
git cat-file -p HEAD
git cat-file -t HEAD:README.md
git cat-file -s HEAD:README.md
git cat-file blob HEAD:LICENSE
printf 'HEAD:docs/d00.md\nHEAD:docs/d01.md\nHEAD:none\n' | git cat-file --batch
printf 'HEAD:docs/d02.md\nHEAD:docs/d03.md\nHEAD\n' | git cat-file --batch-check
git cat-file -e HEAD:no/such
`},
	{name: "cat-file --batch-check of everything", steps: `
git ls-tree -r HEAD --format='%(objectname)' | grep -v $(git rev-parse HEAD:sub) | git cat-file --batch-check
`},
	{name: "blame", steps: `
git blame src/m00/f00.c
git blame -L5,10 -s docs/new-name.md
edit src/m00/f00.c 30
git blame -s src/m00/f00.c; git blame --porcelain src/m00/f01.c
git annotate README.md
`},
	{name: "blame -C -C", steps: `
git blame -C -C -s topic.txt origin/topic
git blame -M -C docs/new-name.md
`},
	{name: "grep in the working tree", steps: `
git grep -n changed
git grep -c 'line 7 of' -- docs
git grep -l --untracked 'line 40 of src/m1'
git grep -q nowhere-to-be-found
`},
	{name: "grep in the index and in a commit", steps: `
git grep --cached -n 'line 3 of docs/d0'
git grep -n 'line 3 of docs/d0' HEAD~2 -- docs
git grep -c far origin/far
`},
	{name: "grep in several commits", steps: `
git grep -l 'changed' main main~5 main~10 -- src/m00
`},
	{name: "ls-files", steps: `
echo x >new; echo x >x.o; rm docs/d00.md; append README.md
git ls-files
git ls-files -m
git ls-files -d
git ls-files -o --exclude-standard
git ls-files -o -i --exclude-standard
git ls-files -s -- bin link sub
git ls-files -z odd
git ls-files --eol -- crlf ident README.md
git ls-files --error-unmatch none
`},
	{name: "ls-files --format", steps: `
git ls-files -t -c -k
git ls-files --format='%(objectmode) %(objectname) %(path)' -- src
`},
	{name: "ls-tree", steps: `
git ls-tree HEAD
git ls-tree -r -t HEAD -- src/m00 docs
git ls-tree -r --name-only HEAD odd
`},
	{name: "ls-tree -l asks for sizes", steps: `
git ls-tree -r -l HEAD -- docs
`},
	{name: "check-ignore and check-attr", steps: `
git check-ignore -v a.o build/x keep.o README.md
git check-attr -a crlf/a.bat assets/i0.png src/m00/f00.c CHANGES vendor ident/x.id
git check-attr eol diff -- crlf/b.bat README.md
git check-attr --cached text -- crlf/a.bat
git check-mailmap 'A <a@b.c>'
`},
	{name: "rev-parse", steps: `
git rev-parse --show-toplevel
git rev-parse HEAD main v1.0 v1.0^{} HEAD~3 main@{0}
git rev-parse --abbrev-ref HEAD @{u}
git rev-parse --is-inside-work-tree --is-bare-repository --is-inside-git-dir --is-shallow-repository
git -C src/m00 rev-parse --show-prefix --show-cdup
git rev-parse --show-object-format
git rev-parse --short HEAD
git rev-parse no-such
`},
	{name: "merge-base and similar commands", steps: `
git merge-base main origin/topic
git merge-base --is-ancestor v1.0 main
git merge-base --all main origin/far
git rev-list --left-right --count main...origin/topic
git cherry main origin/topic
git name-rev --name-only HEAD~3
`},
	{name: "range-diff", steps: `
git range-diff main~3..origin/topic main~3..origin/topic
`},
	{name: "describe", steps: `
git describe
git describe --tags
git describe --always --dirty
append README.md
git describe --dirty
git describe --all --long HEAD~4
`},
	{name: "for-each-ref, branch, tag, remote", online: true, steps: `
git for-each-ref
git branch -a -v
git branch -vv
git tag -l -n
git remote get-url --all origin; git remote show -n origin
git branch -r --contains v1.0
git branch -r --merged main
git show-ref --heads
git ls-remote --heads origin
`},
	{name: "archive", steps: `
git archive HEAD | sha256sum
git archive --format=tar --prefix=p/ v1.0 docs src/m00 | tar -tv
git archive HEAD | tar -t | grep -c vendor
`},
	{name: "pathspec magic", steps: `
git ls-files ':(glob)src/*/f00.c'
git ls-files ':!src' ':!docs' ':!vendor'
git ls-files ':(icase)readme.MD' ':(literal)odd/star*'
git -C docs ls-files ':/bin' ':(top)link'
git diff --stat HEAD~5 -- ':(exclude)docs' ':(attr:diff=cpp)src'
git log --oneline -- ':(glob)**/d0?.md'
`},
	{name: "odd names", steps: `
git ls-files odd
git log --oneline -- 'odd/ünï' 'odd/日本語.txt'
for f in odd/*; do echo changed >>"$f"; done
git status --short
git status -z | tr '\0' '\n'
git add odd/-dash './odd/star*'; git commit -q -m odd -- odd; git show --stat
git diff --name-only HEAD~1
`},
	{name: "diff, everything fetched before", warm: true, steps: `
append README.md; edit src/m03/f03.c
git diff
git diff main~3 main
git diff --stat
git status --short
`},
	{name: "grep, everything fetched before", warm: true, steps: `
git grep -n changed
git grep --cached -c 'line 3 of'
git grep -c 'line 3 of' HEAD
git archive HEAD | sha256sum
`},
}
