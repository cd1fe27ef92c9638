package foreign

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Implementations that cannot fetch missing contents read old versions of files in a mount, and commit there, like in a
// clone.
func TestMountWithoutStockGit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(*testing.T) implementation{"dulwich": dulwich, "JGit": jgit, "libgit2": libgit2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := c(t)
			dir := t.TempDir()
			b := &bench{T: t, implementation: client, dir: dir, seed: filepath.Join(dir, "seed")}
			b.git(dir, "init", "-q", "-b", "main", b.seed)
			b.git(b.seed, "config", "uploadpack.allowFilter", "true")
			b.git(b.seed, "config", "uploadpack.allowAnySHA1InWant", "true")
			for i := range 3 {
				for j := range 200 {
					b.write(filepath.Join(b.seed, fmt.Sprintf("d%d/f%d", j%7, j)), fmt.Sprintf("file %d of version %d\n", j, i))
				}
				b.git(b.seed, "add", ".")
				b.git(b.seed, "commit", "-q", "-m", fmt.Sprint("version ", i))
			}
			at := filepath.Join(dir, "mount")
			env := append(gittest.Env(), "HOME="+dir, "ARTIFACTFS_STATE="+filepath.Join(dir, "state"))
			afs := func(args ...string) {
				t.Helper()
				if out, err := output(t, dir, env, binary, args...); err != nil {
					t.Errorf("artifactfs %s: %v: %s", args[0], err, out)
				}
			}
			afs("mount", "--prefetch", "none", "--history", "full", "--wait", "git", "file://"+b.seed, at)
			defer afs("unmount", "--all")
			defer afs("unmount", "--discard", "--yes", at)
			b.git(at, "update-index", "--index-version", "2") // JGit 4.11 and dulwich 0.21 cannot read version 4
			for i, commit := range []string{"main", "main~1", "main~2"} {
				path := fmt.Sprintf("d%d/f%d", (i+150)%7, i+150)
				got := b.must(nothing, "", "show", at, b.git(b.seed, "rev-parse", commit), path)
				if want := b.git(b.seed, "show", commit+":"+path); got != want {
					t.Errorf("%s of %s: got %q, want %q", path, commit, got, want)
				}
			}
			id := b.must(nothing, "", "commit", at, "d3/f3", "changed\n")
			if got := b.git(at, "rev-parse", "HEAD", "HEAD~1"); got != id+"\n"+b.git(b.seed, "rev-parse", "main") {
				t.Errorf("HEAD and its parent: got %s, want %s and the commit that is mounted", got, id)
			}
			if got := b.git(at, "diff", "--name-status", "HEAD~1"); got != "M\td3/f3" {
				t.Errorf("files that the commit changes: got %q", got)
			}
			if got := b.git(at, "status", "--porcelain"); got != "" {
				t.Errorf("git status after the commit: %s", got)
			}
			b.git(at, "fsck", "--connectivity-only", "--no-dangling")
			if got, err := os.ReadFile(filepath.Join(at, "d3/f3")); err != nil || string(got) != "changed\n" {
				t.Errorf("file after the commit: got %q, %v", got, err)
			}
		})
	}
}
