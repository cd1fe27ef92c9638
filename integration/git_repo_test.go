package integration

// repoScenarios are about the repository and others: remotes, maintenance, submodules, sparseness.
var repoScenarios = []scenario{
	{name: "fetch", own: true, steps: `
server main 'octo1^{tree}' 'On the server'; server topic 'far^{tree}' 'Topic on the server'; on branch fresh main; on branch -D octo2; on tag newer main
git fetch; git status --short --branch; git branch -r; git tag; git log --oneline -2 origin/main
git fetch --prune; git branch -r; git diff --stat main origin/main; git fetch origin topic:local; git log --oneline -1 local; git fetch
cat "$(git rev-parse --git-dir)/FETCH_HEAD" | cut -c1-60
`},
	{name: "pull", own: true, steps: `
server main 'octo1^{tree}' 'On the server'
git pull; git status --short --branch; git log --oneline -2; git pull
server main 'octo2^{tree}' 'Again'; append README.md; git pull --ff-only; git status --short --branch
`},
	{name: "pull that merges, pull --rebase", own: true, steps: `
server main 'octo1^{tree}' 'On the server'; append README.md; git commit -q -a -m mine
git pull -q --no-rebase --no-edit; git log --graph --oneline -4; git status --short --branch
server main 'octo1^{tree}' 'Empty'; append LICENSE; git commit -q -a -m more; git pull -q --rebase; git log --oneline -4; git status --short --branch
`},
	{name: "push", own: true, steps: `
append README.md; git commit -q -a -m mine; git push; git status --short --branch; on log --oneline -2 main
git push -q origin HEAD:new; git push -q origin :octo2; git checkout -q -b work; git push -q -u origin work; git status --short --branch; on for-each-ref
git reset -q --hard HEAD~2; git push; git push -q -f; git push -q --tags; on for-each-ref; git branch -a -vv
`},
	{name: "push that is refused, then fetched and rebased", own: true, steps: `
server main 'octo2^{tree}' 'Was first'; append README.md; git commit -q -a -m mine
git push 2>/dev/null; git fetch -q; git status --short --branch; git rebase -q; git push -q; on log --oneline -3 main; git status --short --branch
`},
	{name: "push to an empty repository", steps: `
git init -q --bare ../bare.git; append README.md; git commit -q -a -m mine
git push -q ../bare.git main v1.0; git -C ../bare.git for-each-ref; git -C ../bare.git fsck
`, why: "git packs whole commits for a repository that has no commits, so it needs all contents of the history"},
	{name: "clone of the working tree", steps: `
git clone -q --no-local -u 'env GIT_NO_LAZY_FETCH=0 git-upload-pack' file://$TOP ../copy; git -C ../copy log --oneline -2; git -C ../copy status --short --branch
`, why: "as for a push to an empty repository"},
	{name: "bundle", steps: `
append README.md; git commit -q -a -m mine; git bundle create -q ../b main~2..main; git bundle verify -q ../b; git bundle list-heads ../b; git ls-remote ../b
git fetch -q ../b main:copy; git log --oneline -1 copy
`},
	{name: "remote add, rename, remove", steps: `
git remote add other $SERVER; git remote | grep -v artifactfs; git fetch -q other main; git log --oneline -1 FETCH_HEAD; git remote rename other another; git branch -r; git remote set-url another ../none; git remote get-url another; git remote remove another; git remote | grep -v artifactfs; git remote show -n origin
`},
	{name: "gc", steps: `
append README.md; git commit -q -a -m mine; git gc -q; git status --short --branch; git fsck; git log --oneline -3; git count-objects | cut -d, -f1
`},
	{name: "fsck", steps: `
append README.md; git commit -q -a -m mine; git fsck; git fsck --full --strict; git fsck --connectivity-only --no-dangling; git commit -q --amend -m other; git fsck --no-reflogs --lost-found
`},
	{name: "repack, prune, pack-refs, commit-graph", steps: `
append README.md; git commit -q -a -m mine; git repack -q -a -d; git prune; git pack-refs --all; git commit-graph write --reachable; git commit-graph verify; git status --short; git fsck; git log --oneline -2
git repack -q -d; git prune-packed; git multi-pack-index write; git fsck; git show --stat
`},
	{name: "maintenance run", steps: `
append README.md; git commit -q -a -m mine; git maintenance run --quiet 2>/dev/null || echo failed; git maintenance run --quiet --task=gc --task=commit-graph --task=loose-objects --task=incremental-repack 2>/dev/null || echo failed; git fsck; git status --short --branch
git reflog expire --expire=now --all; git gc -q --prune=now; git fsck; git status --short; git cat-file -p HEAD:README.md | tail -1
`},
	{name: "submodule update --init", steps: `
git submodule status; git submodule init; git submodule update -q; git submodule status; cat sub/in-sub.txt; git status --short; git -C sub status --short --branch; git -C sub rev-parse --show-superproject-working-tree --show-toplevel
append sub/in-sub.txt; git status --short; git diff --submodule; git -C sub commit -q -a -m changed; git status --short; git add sub; git commit -q -m sub; git show --submodule=short --format=%s; git submodule summary HEAD~1; git submodule foreach -q 'git rev-parse HEAD'
git submodule update -q; git submodule deinit -q -f sub; git status --short; ls sub
`, why: "only the requests for the superproject are counted; stock git clones the submodule"},
	{name: "submodule add, rm", steps: `
git submodule add -q ../sub.git mods/other; sleep 1; git status --short; cat .gitmodules; git commit -q -m added; sleep 1; git status --short; git status --short; git mv mods/other mods/moved; git status --short; git commit -q -m moved; sleep 1; git status --short; git status --short; git rm -q mods/moved; git status --short; git commit -q -m gone; git status --short; ls -a mods
`},
	{name: "sparse-checkout", why: "git first requests the sizes of all files: see above", steps: `
git -c core.fsmonitor=false update-index -q --refresh
git sparse-checkout set docs src/m00; git status --short; ls; ls src; git ls-files -t | cut -c1 | sort | uniq -c; git sparse-checkout list
append README.md; git sparse-checkout add bin; ls; git checkout -q topic; ls; git status --short; git sparse-checkout reapply; git checkout -q -f main; git sparse-checkout disable; git status --short; ls
git sparse-checkout set --no-cone '/docs/' '!/docs/d0*'; ls docs; git status --short; git sparse-checkout disable; git status --short
`},
	{name: "config, alias, environment", steps: `
git config user.name Other; git config alias.s 'status --short'; append README.md; git s; git commit -q -a -m other; git log -1 --format=%cn
git config --get-regexp '^branch\.'; git config remote.origin.url; git config --type=bool core.bare; git var GIT_COMMITTER_IDENT
git --git-dir="$(git rev-parse --absolute-git-dir)" --work-tree="$TOP" -C / status --short; GIT_DIR="$(git rev-parse --absolute-git-dir)" GIT_WORK_TREE="$TOP" git -C src ls-files m00
`},
	{name: "commands in the git directory", steps: `
cd "$(git rev-parse --git-dir)" && git rev-parse HEAD; git branch --show-current; git log --oneline -1
`},
	{name: "the user's credentials, hooks and ignore files", steps: `
echo '*.local' >>"$(git rev-parse --git-path info/exclude)"; echo x >a.local; git status --short --ignored; echo '*.md -diff' >"$(git rev-parse --git-path info/attributes)"; append README.md; git diff; git check-attr diff README.md
echo '*.md' >.git-ignore; git -c core.excludesFile=$TOP/.git-ignore status --short
`},
	{name: "difftool, mergetool", steps: `
append README.md; git difftool -y -x 'diff -u --label a --label b' ; git merge -q origin/conflict; git -c mergetool.t.cmd='cp "$REMOTE" "$MERGED"' -c mergetool.t.trustExitCode=true mergetool -y -t t; git status --short
`},
	{name: "a day's work", online: true, steps: `
git checkout -q -b feature; edit src/m03/f03.c; echo new >src/m03/new.c; git add -A; git commit -q -m 'Part one'; edit src/m04/f04.c; git commit -q -a -m 'Part two'
git fetch -q; git rebase -q origin/main; git diff --stat origin/main; git log --oneline -3; git stash list; edit README.md; git stash -q; git checkout -q main; git merge -q --ff-only feature; git stash pop -q; git status --short --branch
git commit -q -a --amend --no-edit; git branch -D feature; git log -p -1; git blame -s src/m03/f03.c | head -5; git grep -n edited
`},
}

// emptyScenarios begin in a repository without commits.
var emptyScenarios = []scenario{
	{name: "empty repository, first commit", steps: `
git status; git log; git branch -a; git ls-files; git rev-parse HEAD
echo first >first; mkdir d; echo second >d/second; git status --short; git add -A; git status --short --branch; git commit -q -m first; git log --format='%H %s'; git status --short --branch
append first; git diff; git commit -q -a --amend -m again; git log --stat; git rm -q -r d; git status --short
`},
	{name: "empty repository, first commit pushed", own: true, steps: `
echo first >first; git add first; git commit -q -m first; git push -q -u origin HEAD; git status --short --branch; on log --oneline
echo second >second; git add second; git stash -q -u; git status --short; git stash pop -q; git commit -q -m second; git push -q; git fetch; git status --short --branch; git branch -a -vv
`},
}
