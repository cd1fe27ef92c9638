package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// same runs lines on both sides as steps from n on, and compares the answers and the states of both sides.
func (p *pair) same(n int, lines ...string) error {
	for i, line := range lines {
		got, err := p.mount.step(n+i, line)
		if err != nil {
			return err
		}
		want, err := p.clone.step(n+i, line)
		if err != nil {
			return err
		}
		if err := sameAnswers([]answer{got}, []answer{want}); err != nil {
			return err
		}
	}
	got, err := p.mount.state()
	if err != nil {
		return err
	}
	want, err := p.clone.state()
	return errors.Join(err, sameState(got, want))
}

// unmounted unmounts and mounts again; killed does so after the daemon's sudden end.
func (p *pair) unmounted() error {
	if _, err := p.afs("unmount", p.mount.top()); err != nil {
		return err
	}
	return p.again()
}

func (p *pair) killed(t testing.TB) error {
	w := *p.w
	w.TB = t
	w.killed()
	return p.again()
}

// newPair returns a pair that ends with the test.
func (x *gitFixture) newPair(t testing.TB, s scenario) *pair {
	t.Helper()
	p, err := x.pair(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", p.log())
		}
		if err := p.end(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// facesOf returns the attributes of all files of a working tree, which must stay when git writes no files. The git
// directory is left out.
func facesOf(t testing.TB, g *gitSide) map[string]face {
	t.Helper()
	all := (&world{TB: t}).faces(g.top())
	for path := range all {
		if path == "." || strings.HasPrefix(path, ".git"+string(filepath.Separator)) || path == ".git" {
			delete(all, path)
		}
	}
	return all
}

// When a git command moves HEAD without writing files, no file of the mount changes its contents, times or inode
// number, and git status and diff report the same differences as in a clone.
func TestMovingHeadChangesNoFile(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			x := newGitFixture(w, f)
			p := x.newPair(t, scenario{})
			check(t, p.same(0, "append README.md; rm docs/d00.md; echo x >new; chmod +x LICENSE; mv src/m03 moved; git add -A"))
			faces := facesOf(t, p.mount)
			files, err := treeText(p.mount.top())
			check(t, err)
			unchanged := func(what string) {
				t.Helper()
				now, err := treeText(p.mount.top())
				check(t, err)
				if d := lineDiff(what+": the tree", now, files); d != "" {
					t.Error(d)
				}
				inner := *w
				inner.TB = t
				inner.sameFaces(what, facesOf(t, p.mount), faces)
			}
			for i, line := range headMoves {
				if err := p.same(10*i+10, line, "git status --short --branch"); err != nil {
					t.Errorf("compare with the clone after %s: %v", line, err)
				}
				unchanged(line)
				if t.Failed() {
					t.FailNow()
				}
				var err error
				switch i % 6 {
				case 2:
					line, err = "unmount and mount", p.unmounted()
				case 5:
					line, err = "kill and mount", p.killed(t)
				default:
					continue
				}
				check(t, err)
				unchanged(line)
				if err := p.same(10*i+15, "git status --short --branch", "git stash list"); err != nil {
					t.Errorf("compare stashes with the clone after %s: %v", line, err)
				}
			}
			// A command that writes files writes the same files as in a clone.
			for i, line := range []string{"git reset -q --hard origin/main", "git checkout -q topic",
				"git reset -q --hard origin/far", "git checkout -q -B main origin/main"} {
				contents := fileContents(t, p.mount.top())
				faces, clone := facesOf(t, p.mount), facesOf(t, p.clone)
				if err := p.same(1000+10*i, line, "git status --short --branch"); err != nil {
					t.Errorf("compare with the clone after %s: %v", line, err)
				}
				now, inClone := facesOf(t, p.mount), facesOf(t, p.clone)
				for path, content := range fileContents(t, p.mount.top()) {
					// Git rewrites a file whose contents it did not expect, even if they are correct.
					if contents[path] == content && clone[path] == inClone[path] && now[path] != faces[path] {
						t.Errorf("%s: %q was rewritten with the same contents: it is %+v, was %+v", line, path, now[path], faces[path])
					}
				}
				if i == 1 {
					check(t, p.unmounted())
				}
			}
			check(t, p.same(2000, "git fsck", "git log --oneline -3"))
		})
	}
}

// headMoves write no file of the working tree.
var headMoves = []string{
	"git commit -q -m one",
	"git reset -q --soft HEAD~1",
	"git reset -q --mixed",
	"git add -A; git commit -q -m two; git commit -q --amend -m three",
	"git reset -q HEAD~1; git reset -q ORIG_HEAD",
	"git update-ref refs/heads/main HEAD~3",
	"git update-ref refs/heads/other origin/topic; git symbolic-ref HEAD refs/heads/other",
	"git reset -q --soft origin/far",
	"git reset -q --mixed origin/far",
	"git update-ref --no-deref HEAD origin/types; git read-tree HEAD",
	"git read-tree --empty; git read-tree main",
	"git checkout -q --detach; git branch -f main HEAD~2; git symbolic-ref HEAD refs/heads/main; git reset -q",
	"git switch -q -c third; git branch -m fourth; git switch -q --orphan fifth || git checkout -q --orphan fifth; git update-ref -m back HEAD main",
	"git stash create >/dev/null; git commit-tree -m x HEAD^{tree} >/dev/null; git commit -q --allow-empty -m empty",
	"git rm -q -r --cached docs; git commit -q -m forgotten; git revert --no-commit HEAD 2>/dev/null; git reset -q --soft HEAD~1; git reset -q -- docs",
	"git replace --graft HEAD HEAD~2; git replace -d $(git rev-parse HEAD); git tag -f moved; git notes add -m note; git gc -q; git fetch -q",
}

func fileContents(t *testing.T, top string) map[string]string {
	t.Helper()
	all := map[string]string{}
	check(t, filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == ".git" {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(top, path)
		info, err2 := d.Info()
		all[rel] = info.Mode().String() + string(data)
		return errors.Join(err, err2)
	}))
	return all
}
