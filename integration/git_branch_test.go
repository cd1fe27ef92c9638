package integration

// branchScenarios move between branches and join them.
var branchScenarios = []scenario{
	{name: "checkout of a near branch, and back", steps: `
git checkout topic
git status --short --branch; cat topic.txt; git log --oneline -2
git checkout -; git checkout -b work origin/octo1; git branch -vv
git checkout --detach; git status | head -1; git checkout HEAD~2; git checkout -q main; git status --short --branch
`},
	{name: "checkout of a far branch, and back", steps: `
git checkout -q far
git status --short --branch; ls
git checkout -q main; git status --short --branch
`},
	{name: "checkout of types, modes, attributes", steps: `
git checkout -q types; git status --short; stat -c '%A %n' bin/*; cat docs/d04.md/in
git checkout -q eol; git status --short; od -c crlf/b.bat
git checkout -q main; git status --short
`},
	{name: "checkout with changes: kept, refused, forced, merged", steps: `
append README.md; git checkout topic; git status --short; git checkout -q main
append src/m01/f01.c; git checkout topic; git status --short
git checkout -m topic; git status --short; git diff; git checkout -q -f main; git status --short
append README.md; rm docs/d00.md; git checkout -f; git status --short
`},
	{name: "checkout over untracked files", steps: `
echo mine >topic.txt; git checkout topic; cat topic.txt; git checkout -f topic; cat topic.txt
git checkout -q main; echo topic >topic.txt; git checkout topic; rm -f topic.txt; echo x >far; git checkout -q main; git checkout -b far origin/far; rm far; git checkout -q -b far origin/far; git status --short
`},
	{name: "checkout --orphan", steps: `
git checkout -q --orphan new; git status --short | wc -l; git log
git rm -r -q --cached src; git commit -q -m root; git status --short; git log --oneline
`},
	{name: "checkout --merge with a conflict", steps: `
edit src/m01/f01.c 5; git checkout -m topic; git status --short; git diff
git checkout --conflict=diff3 src/m01/f01.c; git diff; git checkout --theirs src/m01/f01.c; cat src/m01/f01.c | head -6
git reset -q --hard; git status --short --branch
`},
	{name: "switch", steps: `
git switch topic; git switch -c work; git switch -; git switch --detach v1.0; git switch none
append src/m01/f01.c; git switch main; git switch --discard-changes main; git status --short --branch
git switch -C work origin/octo2; git switch --orphan empty; git status --short --branch; ls
`},
	{name: "branch", steps: `
git branch one; git branch two HEAD~2; git branch -m one three; git branch -c two four; git branch -u origin/topic two; git branch -d two
git branch -D four; git branch --unset-upstream main; git branch -vv; git branch --contains v1.0; git branch --show-current; git branch -f three HEAD~5; git branch -m renamed; git status --short --branch
git branch -d renamed 2>/dev/null; git branch -r -d origin/octo1; git branch -a
`},
	{name: "tag", steps: `
git tag light; git tag -a -m 'With a text' heavy HEAD~1; git tag -f light HEAD~3; git tag -d v1.1; git tag -l -n3; git tag --points-at HEAD; git tag --contains HEAD~4
git show --stat heavy; git cat-file -p heavy; git tag -v none
`},
	{name: "merge, fast-forward", steps: `
git merge origin/octo1; git status --short --branch; git log --oneline -2
`},
	{name: "merge --no-ff, --squash, already merged", steps: `
git merge -q --no-ff -m joined origin/octo1; git log --graph --oneline -4; git merge origin/octo1
git merge --squash origin/octo2; git status --short; git commit -q -m squashed; git merge --ff-only origin/topic; git log --oneline -3
`},
	{name: "merge of two lines", steps: `
git merge -q --no-edit origin/topic; git log --graph --oneline -8; git status --short; git show --stat --format=%s; git show --cc --format=%s
`},
	{name: "merge with a conflict, resolved", steps: `
git merge origin/conflict
git status --short; git ls-files -u; git diff; cat src/m01/f01.c | head -12
git checkout --ours src/m01/f01.c; git add src/m01/f01.c; git status; git commit -q --no-edit; git log --graph --oneline -5; git status --short
`},
	{name: "merge with a conflict, aborted", steps: `
append LICENSE; git merge origin/conflict; git status --short; git merge --abort; git status --short
edit docs/d02.md; git merge origin/conflict; git status --short
git checkout -q docs LICENSE; git merge -q -X theirs --no-edit origin/conflict; git status --short; git diff HEAD~1 --stat; git reset -q --hard HEAD~1; git merge -q -s ours --no-edit origin/conflict; git diff HEAD~1
`},
	{name: "merge, octopus", steps: `
git merge -q --no-edit origin/octo1 origin/octo2; git log --graph --oneline -5; git status --short; git show --stat --format=%p
git reset -q --hard HEAD~1; git merge -q --no-edit origin/topic origin/conflict; git status --short; git reset -q --hard
`},
	{name: "merge of renamed directories", steps: `
git merge -q --no-edit origin/renames; git status --short; git log --graph --oneline -4; ls; git diff HEAD~1 -M --shortstat
edit lib/m07/f07.c; git commit -q -a -m more; git log --follow --oneline -- lib/m07/f07.c
git merge -q --no-edit origin/octo2; git show --stat --format=%s -m --first-parent
`},
	{name: "merge of far branches", steps: `
git merge -q --no-edit origin/far; git status --short; git show --shortstat --first-parent -m --format=%s
`},
	{name: "merge-tree, merge-file", steps: `
git merge-tree --write-tree main origin/topic
git merge-tree --write-tree --name-only main origin/conflict
git show origin/topic:docs/d01.md >theirs; git show main~3:docs/d01.md >base; git merge-file -p docs/d01.md base theirs | head -4
`},
	{name: "rebase", steps: `
git checkout -q topic; git rebase -q main; git status --short --branch; git log --oneline -5; git diff ORIG_HEAD --stat
git rebase -q --onto main~2 main; git log --oneline -5; git rebase main
`},
	{name: "rebase -i", steps: `
git checkout -q topic; printf '#!/bin/sh\nsed -i "1{h;d};2{G};3s/^pick/squash/" "$1"\n' >$TOP/../editor; chmod +x $TOP/../editor
GIT_SEQUENCE_EDITOR=$TOP/../editor git rebase -i main~3; git log --format=%s -4; git status --short --branch; git log -2 --stat --format=%H
GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -q -i HEAD~2; git status --short; append README.md; git commit -q -a --amend --no-edit; git rebase --continue; git log --format=%H%s -3
GIT_SEQUENCE_EDITOR='sed -i 1s/pick/drop/' git rebase -q -i HEAD~2; git log --format=%s -3
`},
	{name: "rebase with a conflict: abort, skip, continue", steps: `
git checkout -q conflict; git rebase main; git status --short; git status | head -12; git rebase --abort; git status --short --branch
git rebase -q main; git rebase --skip; git log --oneline -3; git reset -q --hard ORIG_HEAD; git status --short --branch
git rebase -q main; git checkout -q --theirs src/m01/f01.c; git add -u; git rebase --continue; git log --oneline -3; git status --short --branch
`},
	{name: "rebase --autostash, --exec, --root", steps: `
git checkout -q topic; append README.md; git rebase -q main; git rebase -q --autostash main; git status --short; git checkout -q README.md
git rebase -q --exec 'git log -1 --format=%s' main~1; git log --oneline -4; git rebase -q --apply main~3; git log --oneline -4
git checkout -q --detach; git rebase -q --no-ff HEAD~2; git log -2 --format=%H%s; git rebase -q --merge --onto v1.0 HEAD~1; git status --short --branch
`},
	{name: "rebase --update-refs of merges", steps: `
git checkout -q topic; git branch below HEAD~1; git merge -q --no-edit origin/octo1; git rebase -q --rebase-merges --update-refs main~3; git log --graph --oneline -6; git for-each-ref refs/heads
`},
	{name: "cherry-pick", steps: `
git cherry-pick origin/topic~2 origin/topic~1; git log --oneline -3; git status --short
git cherry-pick -x -n origin/topic; git status --short; git commit -q -m picked
git cherry-pick origin/conflict~1; git status --short; git cherry-pick --abort; git status --short --branch
git cherry-pick -X theirs main..origin/conflict; git log --oneline -3 --stat; git cherry-pick origin/octo1; git cherry-pick -m 1 v1.0
`},
	{name: "revert", steps: `
git revert --no-edit HEAD; git log -1 --stat --format=%B; git revert --no-edit HEAD~2..HEAD~1; git status --short
git revert -n HEAD~4; git status --short; git revert --quit; git reset -q --hard; git revert -m 1 --no-edit v1.0; git status --short; git diff --stat HEAD~1
edit src/m01/f01.c 5; git commit -q -a -m more; git revert --no-edit main~1; git revert --no-edit $(git log --format=%H -1 --grep='Main edits m01'); git status --short; git revert --abort
`},
	{name: "format-patch, am", steps: `
git format-patch -o ../patches main..origin/topic | sed 's#.*/##'; sha256sum ../patches/*
git am -q ../patches/*; git log --oneline -4; git status --short; git diff origin/topic --stat
git reset -q --hard origin/conflict; git am ../patches/*; git status --short; git am --skip; git am --abort; git status --short --branch
git checkout -q main; git format-patch --stdout main~1..origin/conflict | git am -3; git status --short; git am --abort
`},
	{name: "apply", steps: `
git diff main~3 origin/topic >../topic.diff; git apply --stat ../topic.diff; git apply --check ../topic.diff; git apply ../topic.diff; git status --short
git apply -R ../topic.diff; git status --short; git apply --index ../topic.diff; git status --short; git reset -q --hard
git apply --cached ../topic.diff; git status --short; git reset -q --hard; git diff main~3 origin/conflict >../conflict.diff; git apply ../conflict.diff; git apply --3way ../conflict.diff; git status --short; git diff
`},
	{name: "bisect run", steps: `
git bisect start main main~20 | tail -1; git bisect run grep -q good state.txt | tail -12; git bisect log; git status --short | head -1
git bisect reset; git status --short --branch; git bisect start -q; git bisect bad; git bisect good main~16; git bisect skip; git bisect reset
`},
	{name: "rerere", steps: `
git config rerere.enabled true; git merge origin/conflict; git rerere diff; sed -i '/^[<=>]\{7\}/d' src/m01/f01.c; git add -u; git commit -q -m resolved; git rerere status
git reset -q --hard HEAD~1; git merge origin/conflict; git rerere status; git diff; git status --short; cat src/m01/f01.c | head -8; git add -u; git commit -q -m again; git log --oneline -2
`},
	{name: "notes", steps: `
git notes add -m 'A note'; git notes append -m more HEAD; git notes --ref=agent add -m other HEAD~1; git log -2 --notes=agent; git notes list; git notes show; git notes copy HEAD HEAD~2; git notes remove HEAD; git for-each-ref refs/notes
`},
	{name: "replace, grafts", steps: `
git replace --graft HEAD HEAD~3; git log --oneline -3; git replace -l; git replace -d $(git rev-parse HEAD); git log --oneline -3
`},
	{name: "worktree", steps: `
git worktree add ../side topic; git -C ../side status --short --branch; cat ../side/topic.txt; find ../side -type f | grep -c .; git worktree list --porcelain | grep -v '^worktree'
append ../side/README.md; git -C ../side commit -q -a -m side; git log --oneline -1 topic; git checkout topic; git worktree remove ../side; git worktree add -q --detach ../two HEAD~3; git -C ../two status --short; git worktree move ../two ../three; rm -r ../three; git worktree prune -v; git worktree list | wc -l
git worktree add -q -b inside in/side; git status --short; git -C in/side status --short --branch; git worktree remove in/side; git status --short
`},
	{name: "filter-branch of a subdirectory", steps: `
git filter-branch -f --subdirectory-filter docs -- main~3..main >/dev/null 2>&1; git log --oneline | head -3; git status --short; ls; git update-ref -d refs/original/refs/heads/main
`},
	{name: "fast-export, fast-import", steps: `
git fast-export main~3..main | sha256sum; git fast-export main~2..main | sed s#refs/heads/main#refs/heads/imported# | git fast-import --quiet; git log --oneline -3 imported; git diff main imported --stat
`},
	{name: "log of merges", steps: `
git log --merges -p --cc --format=%s; git log -m --stat --first-parent -5 --format=%s; git show --remerge-diff --format=%s v1.0
`},
	{name: "checkout, everything fetched before", warm: true, steps: `
git checkout -q topic; git checkout -q far; git checkout -q main; git merge -q --no-edit origin/topic; git status --short --branch
`},
	{name: "another branch mounted", ref: "topic", steps: `
git status --short --branch; git branch -a; git log --oneline -3; git checkout main; git branch -vv; git checkout -q topic; git status --short
`},
	{name: "a tag mounted", ref: "v1.0", steps: `
git status; git log --oneline -2; git describe; append README.md; git commit -q -a -m detached; git checkout -q main; git status --short --branch
`},
}
