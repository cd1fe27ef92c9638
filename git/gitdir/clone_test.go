package gitdir

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gogit "github.com/go-git/go-git/v5/plumbing/format/index"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// asGittest gives this process the environment in which package gittest runs git.
func asGittest(t *testing.T) {
	t.Helper()
	for _, v := range gittest.Env() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, value)
		}
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
}

func installed(t *testing.T) Version {
	t.Helper()
	v, err := InstalledGit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestLikeClone checks that a created git directory has the same files as one that git clone creates, except for the
// differences that the package comment explains.
func TestLikeClone(t *testing.T) {
	asGittest(t)
	forFormats(t, func(t *testing.T, f object.Format) {
		repo, commits := source(t, f)
		tip, url := commits[len(commits)-1], "file://"+repo.Path
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gittest.Git(context.Background(), dir, "clone", "--quiet", "--filter=blob:none", url,
			"clone"); err != nil {
			t.Fatal(err)
		}
		theirs, ours := filepath.Join(dir, "clone", ".git"), filepath.Join(dir, "git")
		d, err := Create(ours, Options{
			Format: f, WorkTree: filepath.Join(dir, "work"), Remote: url, Objects: filepath.Join(repo.Path, "objects"),
			Ref: "refs/heads/main", Commit: tip, Partial: true, Default: "refs/heads/main", Git: installed(t),
			Monitor: "/nonexistent", Helper: "/nonexistent/it's",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.SetRefs([]packedrefs.Ref{{Name: "refs/heads/main", ID: tip}}); err != nil {
			t.Fatal(err)
		}
		compareFiles(t, theirs, ours)
		for _, command := range []string{"for-each-ref", "symbolic-ref HEAD", "symbolic-ref refs/remotes/origin/HEAD",
			"rev-parse HEAD origin main@{upstream}", "log -g --format=%H%gs%gn%ge"} {
			if got, want := git(t, ours, strings.Fields(command)...), git(t, theirs, strings.Fields(command)...); got != want {
				t.Errorf("git %s printed %q, in the clone %q", command, got, want)
			}
		}
		compareConfig(t, ours, theirs)
	})
}

// compareFiles reports the files that only one of two git directories has, and those that differ.
func compareFiles(t *testing.T, theirs, ours string) {
	t.Helper()
	files := func(dir string) map[string]string {
		found := map[string]string{}
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, path)
			if err != nil || strings.HasPrefix(name, "objects/") {
				return err
			}
			if e.IsDir() {
				found[name+"/"] = ""
				return nil
			}
			content, err := os.ReadFile(path)
			if err == nil || e.Type()&fs.ModeSymlink != 0 {
				found[name] = string(content)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	a, b := files(theirs), files(ours)
	for name, content := range a {
		switch name {
		case "index", "refs/heads/main", "packed-refs", "config": // see the package comment
		default:
			if got, ok := b[name]; !ok {
				t.Errorf("only the clone has %s", name)
			} else if strings.HasPrefix(name, "logs/") { // the lines of reflogs contain times, which may differ
				if fields(got) != fields(content) {
					t.Errorf("file %s: got %q, the clone has %q", name, got, content)
				}
			} else if got != content {
				t.Errorf("file %s: got %.200q, the clone has %.200q", name, got, content)
			}
		}
	}
	for name := range b {
		switch name {
		case "packed-refs", monitorConfig, loginsConfig, "logs/refs/heads/", "logs/refs/heads/main":
		default:
			if _, ok := a[name]; !ok {
				t.Errorf("the clone does not have %s", name)
			}
		}
	}
}

// fields returns a line of a reflog without its time.
func fields(line string) string {
	who, what, _ := strings.Cut(line, "> ")
	_, what, _ = strings.Cut(what, "\t")
	return who + "\t" + what
}

func compareConfig(t *testing.T, ours, theirs string) {
	t.Helper()
	list := func(dir string) []string {
		return strings.Split(git(t, dir, "config", "--local", "--no-includes", "--list"), "\n")
	}
	a, b := list(theirs), list(ours)
	for _, line := range a {
		if !slices.Contains(b, line) {
			t.Errorf("only the clone has the setting %s", line)
		}
	}
	for _, line := range b {
		key, _, _ := strings.Cut(line, "=")
		if !slices.Contains(a, line) && !strings.HasPrefix(key, "includeif.") && key != "include.path" &&
			!strings.HasPrefix(key, "remote."+helperRemote+".") &&
			!slices.Contains([]string{"core.worktree", "gc.auto", "maintenance.auto", "maintenance.strategy",
				"extensions.objectformat"}, key) {
			t.Errorf("the clone does not have the setting %s", line)
		}
	}
}

// TestHelperIsAskedFirst checks that git requests missing objects from the promisor remote of the mount before it
// requests them from origin, and that no other command fetches from this remote.
func TestHelperIsAskedFirst(t *testing.T) {
	asGittest(t)
	repo, commits := source(t, object.SHA1)
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	helper := filepath.Join(dir, "it's a helper")
	script := "#!/bin/sh\necho \"$@\" >>'" + asked + "'\nexit 1\n"
	if err := os.WriteFile(helper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "git #1")
	o := Options{
		WorkTree: filepath.Join(dir, "work"), Remote: "file://" + repo.Path, Objects: filepath.Join(dir, "objects"),
		Ref: "refs/heads/main", Commit: commits[4], Partial: true, Git: installed(t), Helper: helper,
	}
	if _, err := Create(path, o); err != nil {
		t.Fatal(err)
	}
	// The object is fetched from origin after the promisor remote has failed.
	git(t, path, "cat-file", "-e", commits[4].String())
	said, err := os.ReadFile(asked)
	if err != nil {
		t.Fatalf("git did not run the helper: %v", err)
	}
	if want := "upload-pack-helper " + path + "\n"; string(said) != want {
		t.Errorf("the helper was started with %q, want %q", said, want)
	}
	if err := os.Remove(asked); err != nil {
		t.Fatal(err)
	}
	git(t, path, "fetch", "--all")
	git(t, path, "fetch")
	git(t, path, "remote", "update")
	if said, err := os.ReadFile(asked); err == nil {
		t.Errorf("the helper was started with %q", said)
	}
}

// TestMonitorSettings checks that the file system monitor is configured for the mount's working tree, and not for other
// working trees of the repository.
func TestMonitorSettings(t *testing.T) {
	asGittest(t)
	repo, commits := source(t, object.SHA1)
	for _, c := range []struct {
		git  Version
		hook string
		want string
	}{
		{Version{2, 55}, "/bin/monitor", "true"}, {Version{3, 0}, "", "true"}, {Version{2, 39}, "/bin/monitor", "link"},
		{Version{2, 39}, "", ""}, {Version{2, 43}, "/bin/monitor", "link"}, {Version{}, "/bin/monitor", "link"},
	} {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, `it's "a" [directory]`)
		o := Options{
			WorkTree: filepath.Join(dir, "work"), Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
			Ref: "refs/heads/main", Commit: commits[4], Git: c.git, Monitor: c.hook,
		}
		if _, err := Create(path, o); err != nil {
			t.Fatal(err)
		}
		// An earlier version has put the link into the directory.
		if err := os.Symlink("/bin/monitor", filepath.Join(path, query.CarefulName)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(path, o); err != nil { // Open writes the settings again
			t.Fatal(err)
		}
		if err := filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.Type() == fs.ModeSymlink {
				t.Errorf("symbolic link in the git directory: %s", name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want := c.want
		if want == "link" {
			link := query.Beside(path, query.HookName)
			if c.git.Minor < 43 {
				link = query.Beside(path, query.CarefulName)
			}
			if to, err := os.Readlink(link); err != nil || to != c.hook {
				t.Errorf("target of the hook: got %q, %v", to, err)
			}
			want = shellQuote(link)
		}
		if got := git(t, path, "config", "--default", "", "core.fsmonitor"); got != want {
			t.Errorf("core.fsmonitor for git %v: got %q, want %q", c.git, got, want)
		}
		other := filepath.Join(dir, "other")
		git(t, path, "worktree", "add", "--quiet", "--no-checkout", other)
		if got, err := gittest.Git(context.Background(), other, "config", "--default", "", "core.fsmonitor"); got != "" ||
			err != nil {
			t.Errorf("core.fsmonitor in another working tree: got %q, %v", got, err)
		}
		git(t, path, "config", "core.fsmonitor", "false")
		if got := git(t, path, "config", "core.fsmonitor"); got != "false" {
			t.Errorf("the user's setting is ignored: got %q", got)
		}
	}
}

func TestInstalledGit(t *testing.T) {
	if v := installed(t); !v.AtLeast(Version{2, 20}) || v.AtLeast(Version{v.Major, v.Minor + 1}) ||
		!v.AtLeast(Version{v.Major - 1, 99}) {
		t.Errorf("version of git: got %v", v)
	}
	t.Setenv("PATH", t.TempDir())
	if v, err := InstalledGit(context.Background()); err == nil {
		t.Errorf("version without git: got %v", v)
	}
}

// walkOf returns a Walk over the checkout of a tree in dir.
func walkOf(t *testing.T, dir string, tree object.ID) Walk {
	return func(_ context.Context, emit func(index.Entry) error) error {
		if err := emit(index.Entry{Mode: object.ModeDir, ID: tree}); err != nil {
			return err
		}
		lines, err := gittest.Git(context.Background(), dir, "ls-tree", "-r", "-t", "HEAD")
		if err != nil {
			return err
		}
		for _, line := range strings.Split(lines, "\n") {
			head, path, _ := strings.Cut(line, "\t")
			f := strings.Fields(head)
			mode := map[string]object.Mode{"100644": object.ModeFile, "040000": object.ModeDir}[f[0]]
			if err := emit(index.Entry{Path: path, Mode: mode, ID: object.MustID(f[2]), Valid: true}); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestWriteIndex checks that the index is written once and atomically, and that git accepts it with all settings of the
// user for ignored files.
func TestWriteIndex(t *testing.T) {
	asGittest(t)
	ignore := filepath.Join(t.TempDir(), "ignore")
	if err := os.WriteFile(ignore, []byte("*.tmp\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]string{
		"none": "", "excludes": "[core]\n\texcludesFile = " + ignore + "\n", "all": "[status]\n\tshowUntrackedFiles = all\n",
	} {
		t.Run(name, func(t *testing.T) {
			global := filepath.Join(t.TempDir(), "gitconfig")
			if err := os.WriteFile(global, []byte(config), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Setenv("GIT_CONFIG_GLOBAL", global)
			repo, _ := source(t, object.SHA1)
			tip, err := repo.Commit("main", map[string]gittest.File{".gitignore": {Data: []byte("*.o\n")},
				"a/b/c": {Data: []byte("c\n")}}, "more")
			if err != nil {
				t.Fatal(err)
			}
			work := t.TempDir()
			path := filepath.Join(t.TempDir(), "git")
			d, err := Create(path, Options{WorkTree: work, Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
				Ref: "refs/heads/main", Commit: tip, Git: installed(t)})
			if err != nil {
				t.Fatal(err)
			}
			hook := filepath.Join(t.TempDir(), "hook")
			if err := os.WriteFile(hook, []byte("#!/bin/sh\nprintf 't:2\\0'\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			git(t, path, "config", "core.fsmonitor", hook)
			git(t, path, "config", "core.untrackedCache", "true")
			tree := object.MustID(git(t, path, "rev-parse", "HEAD^{tree}"))
			o := IndexOptions{Token: "t:1"}
			failed := func(ctx context.Context, emit func(index.Entry) error) error { return context.Canceled }
			if err := d.WriteIndex(context.Background(), o, failed); err == nil {
				t.Error("a failed walk created an index")
			}
			if err := d.WriteIndex(context.Background(), o, walkOf(t, path, tree)); err != nil {
				t.Fatal(err)
			}
			if left, err := filepath.Glob(filepath.Join(path, "index.*")); len(left) > 0 || err != nil {
				t.Errorf("temporary files: got %q, %v", left, err)
			}
			if err := d.WriteIndex(context.Background(), o, failed); err != nil {
				t.Errorf("writing an index that exists: got %v", err)
			}
			before, err := os.ReadFile(filepath.Join(path, "index"))
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("GIT_DIR", path)
			cmd := gitcmd.New(context.Background(), "-C", work, "--git-dir", path, "status", "--porcelain")
			out, err := cmd.CombinedOutput() // runs in an empty working tree
			if err != nil || (name != "all") != (len(out) == 0) && len(out) > 0 {
				t.Errorf("git status printed %q, %v", out, err)
			}
			x, err := index.Read(object.SHA1, before)
			if err != nil {
				t.Fatal(err)
			}
			if excluded := !x.Untracked.ExcludesFile.ID.IsZero(); excluded != (name == "excludes") {
				t.Errorf("the index has the excludes file: got %v", excluded)
			}
			if x.Untracked.InfoExclude.ID.IsZero() {
				t.Error("the index does not have info/exclude")
			}
			after, err := os.ReadFile(filepath.Join(path, "index"))
			if err != nil || !bytes.Equal(after, before) && name != "all" {
				t.Errorf("git status rewrote the index, %v", err)
			}
		})
	}
}

// TestGoGitReadsIndex checks that go-git can read the index.
func TestGoGitReadsIndex(t *testing.T) {
	asGittest(t)
	repo, commits := source(t, object.SHA1)
	path := filepath.Join(t.TempDir(), "git")
	d, err := Create(path, Options{WorkTree: t.TempDir(), Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
		Ref: "refs/heads/main", Commit: commits[4], Git: installed(t)})
	if err != nil {
		t.Fatal(err)
	}
	tree := object.MustID(git(t, path, "rev-parse", "HEAD^{tree}"))
	if err := d.WriteIndex(context.Background(), IndexOptions{Token: "t:1"}, walkOf(t, path, tree)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(path, "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var x gogit.Index
	if err := gogit.NewDecoder(f).Decode(&x); err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(git(t, path, "ls-files"), "\n") + 1; len(x.Entries) != want {
		t.Errorf("entries of the index: got %d, want %d", len(x.Entries), want)
	}
}
