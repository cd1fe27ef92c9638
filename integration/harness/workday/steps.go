package workday

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// step is a kind of action of a user in a working tree. script returns the shell script of an action, or "" if the
// action is not possible at this moment.
type step struct {
	name   string
	often  int
	script func(w *working) string
}

var steps = []step{
	{"edit", 6, func(w *working) string { return "echo " + w.name("line") + " >>" + w.file() }},
	{"edit in place", 3, func(w *working) string { return "sed -i '1s/^/" + w.name("first") + " /' " + w.file() }},
	{"edit in the middle", 2, func(w *working) string {
		return "printf XXXX | dd of=" + w.file() + " bs=1 seek=8 conv=notrunc 2>/dev/null"
	}},
	{"truncate", 1, func(w *working) string { return "truncate -s 5 " + w.file() }},
	{"new file", 4, func(w *working) string { return "echo new >" + filepath.Join(w.dir(), w.name("new")) }},
	{"new directory", 2, func(w *working) string {
		d := filepath.Join(w.dir(), w.name("dir"))
		return "mkdir -p " + d + "/deep && for i in 1 2 3 4 5; do echo $i >" + d + "/deep/f$i; done"
	}},
	{"empty directory", 1, func(w *working) string { return "mkdir " + filepath.Join(w.dir(), w.name("empty")) }},
	{"rename", 3, func(w *working) string { return "mv " + w.file() + " " + filepath.Join(w.dir(), w.name("moved")) }},
	{"rename over", 1, func(w *working) string { return "mv -f " + w.file() + " " + w.file() }},
	{"rename directory", 2, func(w *working) string {
		if d := w.dir(); d != "." {
			return "mv " + d + " " + w.name("moveddir")
		}
		return ""
	}},
	{"delete", 3, func(w *working) string { return "rm -f " + w.file() }},
	{"delete directory", 1, func(w *working) string {
		if d := w.dir(); d != "." {
			return "rm -rf " + d
		}
		return ""
	}},
	{"mode", 2, func(w *working) string {
		return "f=" + w.file() + "; if test -x $f; then chmod -x $f; else chmod +x $f; fi"
	}},
	{"link", 1, func(w *working) string {
		return "ln -s " + w.name("target") + " " + filepath.Join(w.dir(), w.name("link"))
	}},
	{"file to directory", 1, func(w *working) string {
		f := w.file()
		return "rm -f " + f + " && mkdir " + f + " && echo in >" + f + "/in"
	}},
	{"ignored", 1, func(w *working) string { return "mkdir -p build && echo object >build/" + w.name("x") + ".o" }},
	{"copy", 1, func(w *working) string { return "cp " + w.file() + " " + filepath.Join(w.dir(), w.name("copy")) }},
	{"large", 1, func(w *working) string {
		return fmt.Sprintf("seq %d 1000000 | head -c 300000 >%s", w.made, filepath.Join(w.dir(), w.name("large")))
	}},

	{"add", 3, func(w *working) string { return "git add " + w.file() }},
	{"add all", 3, func(w *working) string { return "git add -A" }},
	{"intent to add", 1, func(w *working) string { return "f=" + w.name("intended") + "; echo later >$f; git add -N $f" }},
	{"assume unchanged", 1,
		func(w *working) string { return "git update-index --assume-unchanged $(git ls-files | head -n 1)" }},
	{"git mv", 1, func(w *working) string { return "git mv -k " + w.file() + " " + w.name("gitmoved") }},
	{"git rm", 1, func(w *working) string { return "git rm -q -f " + w.file() }},
	{"commit", 4, func(w *working) string { return "git commit -q -m " + w.name("staged") }},
	{"commit all", 4, func(w *working) string { return "git add -A && git commit -q -m " + w.name("all") }},
	{"amend", 2, func(w *working) string { return "git commit -q --amend -m " + w.name("amended") }},
	{"reset", 1, func(w *working) string { return "git reset -q HEAD~1" }},
	{"reset hard", 1, func(w *working) string { return "git reset -q --hard" }},
	{"checkout of a path", 1, func(w *working) string { return "git checkout -q -- " + w.file() }},
	{"stash", 2, func(w *working) string { return "git stash push -q -u -m " + w.name("stash") }},
	{"stash pop", 2, func(w *working) string { return "git stash pop -q" }},
	{"stash drop", 1, func(w *working) string { return "git stash drop -q" }},
	{"new branch", 2, func(w *working) string { return "git switch -q -c " + w.name("branch") }},
	{"switch", 3, func(w *working) string { return "git switch -q " + w.branch() }},
	{"detach", 1, func(w *working) string { return "git switch -q --detach" }},
	{"switch by force", 1, func(w *working) string { return "git switch -q -f " + w.branch() }},
	{"delete branch", 1, func(w *working) string { return "git branch -q -D " + w.branch() }},
	{"rename branch", 1, func(w *working) string { return "git branch -m " + w.branch() + " " + w.name("renamed") }},
	{"merge", 2, func(w *working) string { return "git merge -q " + w.branch() }},
	{"rebase", 2, func(w *working) string { return "git rebase -q --autostash " + w.branch() }},
	{"rebase interactively", 1, func(w *working) string {
		return `GIT_SEQUENCE_EDITOR="sed -i '1s/^pick/edit/'" git rebase -q -i HEAD~2`
	}},
	{"cherry-pick", 1, func(w *working) string { return "git cherry-pick " + w.branch() }},
	{"revert", 1, func(w *working) string { return "git revert --no-edit HEAD" }},
	{"go on", 3, func(w *working) string {
		return "git add -A; git rebase --continue || git merge --continue || git cherry-pick --continue || git revert --continue"
	}},
	{"give up", 3, func(w *working) string {
		return "git rebase --abort || git merge --abort || git cherry-pick --abort || git revert --abort"
	}},
	{"tag", 1, func(w *working) string { return "git tag -a -m tag " + w.name("tag") }},
	{"note", 1, func(w *working) string { return "git notes add -f -m " + w.name("note") }},
	{"pack refs", 1, func(w *working) string { return "git pack-refs --all" }},
	{"look", 2, func(w *working) string { return "git status && git log -3 --stat && git diff && git diff --cached" }},
}

// choose returns the name and the script of a random step that is possible at this moment.
func (w *working) choose() (name, script string) {
	all := 0
	for _, s := range steps {
		all += s.often
	}
	for {
		n := w.rnd.IntN(all)
		for _, s := range steps {
			if n -= s.often; n >= 0 {
				continue
			}
			if script := s.script(w); script != "" {
				return s.name, script
			}
			break
		}
	}
}

func (w *working) name(kind string) string {
	w.made++
	return fmt.Sprintf("%s%d", kind, w.made)
}

// among returns the paths of the files and directories for which want returns true, except .git, build and .gitignore.
// A shell script can contain the paths without quoting.
func (w *working) among(want func(os.FileInfo) bool) []string {
	var found []string
	filepath.Walk(".", func(path string, info os.FileInfo, err error) error {
		switch {
		case err != nil:
			return nil
		case path == ".git" || path == "build":
			if info.IsDir() {
				return filepath.SkipDir
			}
		case want(info) && path != ".gitignore":
			found = append(found, path)
		}
		return nil
	})
	return found
}

// file returns the path of a random regular file, or a new name if there is none.
func (w *working) file() string {
	all := w.among(func(i os.FileInfo) bool { return i.Mode().IsRegular() })
	if len(all) == 0 {
		return w.name("first")
	}
	return all[w.rnd.IntN(len(all))]
}

// dir returns the path of a random directory, which may be ".".
func (w *working) dir() string {
	all := append(w.among(func(i os.FileInfo) bool { return i.IsDir() }), ".")
	return all[w.rnd.IntN(len(all))]
}

// branch returns the name of a random local branch.
func (w *working) branch() string {
	all := []string{"main"}
	for _, r := range w.state.Refs {
		if _, name, _ := strings.Cut(r, " refs/heads/"); name != "" {
			all = append(all, name)
		}
	}
	return all[w.rnd.IntN(len(all))]
}
