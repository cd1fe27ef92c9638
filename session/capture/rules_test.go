package capture_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

// reasons returns the excluded paths with the reasons as text.
func reasons(left []capture.LeftOut) string {
	var list []string
	for _, l := range left {
		list = append(list, l.Path+" "+string(l.Why))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func ruledWorld(t *testing.T, r capture.Rules) *world {
	t.Helper()
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		".gitignore": text("build/\n*.log\n"), ".env": text("committed\n"), "a.pem": text("committed\n"),
		"src/a.c": text("a\n"), "large": text("small\n"),
	})
	w.o.Rules = r
	w.openCapturer()
	return w
}

func edits(w *world) {
	for _, path := range []string{
		".env", "a.pem", "sub/.env", "sub/.env.local", "sub/.env.example", "id_rsa", "id_map.go", "x/.aws/credentials",
		"server.key", "src/new.c", "src/a.c", "build/out.o",
		"build/deep/keep.txt", "trace.log", "dist/app.js", ".npmrc", "sub/.npmrc",
	} {
		w.write(path, "changed\n")
	}
	w.write("sub/.npmrc", "//registry/:_authToken=abc\n")
	w.write("large", strings.Repeat("x", 2000))
	w.write("larger", strings.Repeat("x", 2000))
}

func (w *world) files(p session.Checkpoint) string {
	return strings.ReplaceAll(w.git(w.repo.Dir(), "ls-tree", "-r", "--name-only", p.Tree.String()), "\n", " ")
}

func TestWhatIsLeftOut(t *testing.T) {
	for _, test := range []struct {
		name    string
		rules   capture.Rules
		files   string
		left    string
		tracked string // expected contents of src/a.c
	}{
		{"by default", capture.Rules{MaxFileSize: 1000},
			".env .gitignore .npmrc a.pem dist/app.js id_map.go large src/a.c src/new.c sub/.env.example",
			"build/ ignored, id_rsa secret, larger size, server.key secret, sub/.env secret, sub/.env.local secret, sub/.npmrc secret, trace.log ignored, x/.aws/credentials secret", "changed\n"},
		{"no deny list", capture.Rules{MaxFileSize: 1000, NoDenyList: true},
			".env .gitignore .npmrc a.pem dist/app.js id_map.go id_rsa large server.key src/a.c src/new.c sub/.env sub/.env.example sub/.env.local sub/.npmrc x/.aws/credentials",
			"build/ ignored, larger size, trace.log ignored", "changed\n"},
		{"globs", capture.Rules{Include: []string{"build/deep/*", "*.log", "sub/.env"},
			Exclude: []string{"dist", "src/*.c", "id_*"}},
			".env .gitignore .npmrc a.pem build/deep/keep.txt large larger src/a.c sub/.env sub/.env.example trace.log",
			"build/out.o ignored, dist/app.js excluded, id_map.go excluded, id_rsa excluded, server.key secret, src/a.c excluded, src/new.c excluded, sub/.env.local secret, sub/.npmrc secret, x/.aws/credentials secret", "a\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := ruledWorld(t, test.rules)
			edits(w)
			p, r := w.checkpoint(session.Manual)
			if got := w.files(p); got != test.files {
				t.Errorf("files of the checkpoint:\n%s\nwant\n%s", got, test.files)
			}
			if got := reasons(r.Left); got != test.left || p.Left != int64(len(r.Left)) {
				t.Errorf("excluded paths:\n%s\nwant\n%s (%d)", got, test.left, p.Left)
			}
			s, err := w.repo.State(p)
			if err != nil || reasons(s.Left) != test.left {
				t.Errorf("excluded paths of the checkpoint state: got %s, %v", reasons(s.Left), err)
			}
			if _, content := w.in(p.Tree, "src/a.c"); content != test.tracked {
				t.Errorf("src/a.c in the checkpoint: got %q", content)
			}
		})
	}
}

// TestAFileInPlaceOfATrackedDirectory checks that a file that has replaced a tracked directory counts as untracked, as
// in git, so that it may be ignored, or left out as a secret.
func TestAFileInPlaceOfATrackedDirectory(t *testing.T) {
	for _, path := range []string{"a", ".env"} {
		w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text("*.o\n"), "a/b": text("b\n"),
			".env/c": text("c\n")})
		w.o.Rules = capture.Rules{}
		w.openCapturer()
		w.remove(path)
		w.write(path, "new\n")
		want := session.Ignored
		if path == "a" { // git would commit the file before it is ignored
			w.check("it is new")
			w.write(".gitignore", "/a\n")
			w.check("it is ignored")
			w.git(w.plain, "add", "-f", path)
			w.check("it is added all the same")
			w.git(w.plain, "reset", "-q")
			w.check("and not any more")
		} else {
			want = session.Secret
		}
		if _, r := w.checkpoint(session.Manual); reasons(r.Left) != path+" "+string(want) {
			t.Errorf("excluded paths: got %s", reasons(r.Left))
		}
	}
}

// TestStagedSecrets checks that a secret that was staged but never committed is in none of the objects that are pushed.
func TestStagedSecrets(t *testing.T) {
	w := ruledWorld(t, capture.Rules{})
	w.write("sub/.env", "SECRET=hunter2\n")
	w.write("sub/ok", "fine\n")
	w.write(".env", "committed before\n")
	w.git(w.plain, "add", "-A")
	p, _ := w.checkpoint(session.Manual)
	s, err := w.repo.State(p)
	if err != nil {
		t.Fatal(err)
	}
	if mode, _ := w.in(s.Index.Tree, "sub/.env"); mode != 0 {
		t.Error("the secret is in the index's tree")
	}
	if mode, _ := w.in(s.Index.Tree, "sub/ok"); mode == 0 {
		t.Error("a file beside the secret is not in the index's tree")
	}
	if _, got := w.in(s.Index.Tree, ".env"); got != "committed before\n" {
		t.Errorf("committed secret in the index's tree: got %q", got)
	}
	blob := object.MustID(w.git(w.plain, "rev-parse", ":sub/.env"))
	if w.repo.Owned(blob) {
		t.Error("the blob of the secret is in the session repository")
	}
	w.git(w.plain, "commit", "-q", "-m", "on purpose")
	p, _ = w.checkpoint(session.Manual)
	if s, err = w.repo.State(p); err != nil {
		t.Fatal(err)
	}
	if mode, _ := w.in(s.Index.Tree, "sub/.env"); mode == 0 {
		t.Error("a committed secret is not in the index's tree")
	}
	w.git(w.repo.Dir(), "fsck")
}

// TestRulesThatChange checks that changed rules are also applied to files that have not changed.
func TestRulesThatChange(t *testing.T) {
	w := ruledWorld(t, capture.Rules{NoDenyList: true})
	w.write("build/a", "a\n")
	w.write("one.log", "log\n")
	w.write("two.tmp", "tmp\n")
	w.check("first")
	w.write(".gitignore", "*.tmp\n")
	w.check("other rules")
	w.git(w.plain, "add", "-f", "two.tmp")
	w.check("tracked though ignored")
	w.git(w.plain, "rm", "-q", "--cached", "two.tmp")
	w.check("and no more")
	must(t, os.WriteFile(w.at(".git/info/exclude"), []byte("one.log\n"), 0o644))
	w.check("info/exclude")
	w.o.Rules.Include = []string{"*.tmp"}
	w.openCapturer()
	p, _ := w.checkpoint(session.Idle)
	if mode, _ := w.in(p.Tree, "two.tmp"); mode == 0 {
		t.Error("an included file is not in the checkpoint")
	}
}

// TestIgnoreFileIsFetched checks that an ignore file that is missing on this host is requested once.
func TestIgnoreFileIsFetched(t *testing.T) {
	w, asked, _ := worldWithMissingIgnoreFile(t)
	w.openCapturer()
	w.write("x.log", "x\n")
	w.write("build/x", "x\n")
	w.write("new", "x\n")
	p, r := w.checkpoint(session.Manual)
	if *asked != 1 || reasons(r.Left) != "build/ ignored, x.log ignored" || p.Changed != 1 || len(r.Unread) > 0 {
		t.Errorf("ignore file was requested %d times; excluded %v, checkpoint %+v", *asked, r.Left, p)
	}
	w.write("y.log", "y\n")
	w.write("src/a.c", "edited\n")
	if p, r = w.checkpoint(session.Manual); *asked != 1 || p.Left != 3 || !r.Made {
		t.Errorf("at the second checkpoint, ignore file was requested %d times; excluded %v, checkpoint %+v",
			*asked, r.Left, p)
	}
}

// TestIgnoreFileFetchFails checks that checkpoints contain the ignored files while the ignore file cannot be
// fetched, and that the first checkpoint after it was fetched does not.
func TestIgnoreFileFetchFails(t *testing.T) {
	w, _, away := worldWithMissingIgnoreFile(t)
	w.o.Memory = w.dir + "/memory"
	w.openCapturer()
	*away = true
	w.write("x.log", "x\n")
	w.write("new", "x\n")
	p, r := w.checkpoint(session.Manual)
	if mode, _ := w.in(p.Tree, "x.log"); mode == 0 || !slices.Equal(r.Unread, []string{".gitignore"}) {
		t.Errorf("ignored file without the ignore file: got mode %o, report %+v", mode, r)
	}
	*away = false
	w.write("newer", "x\n")
	p, r = w.checkpoint(session.Manual)
	if mode, _ := w.in(p.Tree, "x.log"); mode != 0 || reasons(r.Left) != "x.log ignored" || len(r.Unread) > 0 {
		t.Errorf("ignored file with the ignore file: got mode %o, report %+v", mode, r)
	}
	for _, name := range []string{"new", "newer"} {
		if mode, _ := w.in(p.Tree, name); mode == 0 {
			t.Errorf("file %s is not in the checkpoint", name)
		}
	}
}

// worldWithMissingIgnoreFile returns a world with a blobless clone, in which an ignore file is missing on this host.
// asked counts the requests for the file, which fail while away is true.
func worldWithMissingIgnoreFile(t *testing.T) (w *world, asked *int, away *bool) {
	t.Helper()
	w, asked, away = ruledWorld(t, capture.Rules{}), new(int), new(bool)
	_, rules := w.in(w.root, ".gitignore")
	id := object.MustID(w.git(w.plain, "rev-parse", "HEAD:.gitignore"))
	far := w.dir + "/far"
	w.git(w.dir, "clone", "-q", "--bare", "--filter=blob:none", "file://"+w.dir+"/remote.git", "far")
	w.git(far, "config", "remote.origin.promisor", "false")
	repo, err := session.OpenRepo(w.dir+"/far-session.git",
		session.RepoOptions{Session: "s", Borrow: []string{far + "/objects"}})
	must(t, err)
	t.Cleanup(func() { repo.Close() })
	w.repo, w.o.Repo, w.o.Memory = repo, repo, ""
	w.o.Blob = func(_ context.Context, path string, blob object.ID) ([]byte, error) {
		*asked++
		if *away {
			return nil, errors.New("remote cannot be reached")
		}
		if path != ".gitignore" || blob != id {
			return nil, fmt.Errorf("request for missing contents of %s %s", path, blob)
		}
		return []byte(rules), nil
	}
	return w, asked, away
}

// TestLinkedWorktreesAreNamed checks that the report and the state of a checkpoint list linked worktrees inside the
// mount as left out, even in an ignored directory, until they are removed.
func TestLinkedWorktreesAreNamed(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text(".claude/\n"), "a": text("a\n")})
	w.o.Dir = w.plain
	w.openCapturer()
	w.mkdir(".claude/worktrees/one")
	w.git(w.plain, "worktree", "add", "-q", ".claude/worktrees/one", "-b", "one")
	dir, name := w.parent(".claude/worktrees/one/.git")
	_, err := w.tree.Mknod(w.ctx, dir, name, syscall.S_IFREG|0o644, 0, cred)
	must(t, err)
	w.git(w.plain, "worktree", "add", "-q", filepath.Join(w.dir, "outside"), "-b", "two")
	p, r := w.checkpoint(session.Manual)
	const want = ".claude/ ignored, .claude/worktrees/one/ worktree"
	if s, err := w.repo.State(p); err != nil || reasons(r.Left) != want || reasons(s.Left) != want {
		t.Errorf("left out: got %s, in the state %s, %v, want %s", reasons(r.Left), reasons(s.Left), err, want)
	}
	w.git(w.plain, "worktree", "remove", ".claude/worktrees/one")
	if _, r := w.checkpoint(session.Manual); reasons(r.Left) != ".claude/ ignored" {
		t.Errorf("left out after the worktree was removed: got %s", reasons(r.Left))
	}
}
