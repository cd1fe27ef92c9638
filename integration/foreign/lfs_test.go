package foreign

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The server does not store files of git-lfs: it refuses a push of them with an error that says so, and no ref is
// pushed.
func TestLFS(t *testing.T) {
	t.Parallel()
	program(t, "git-lfs")
	h := serve(t)
	repo := h.create(t, "lfs")
	dir := filepath.Join(t.TempDir(), "work")
	remote := strings.Replace(repo.Remote, "://", "://x:"+secret(repo.Token)+"@", 1)
	do := func(args ...string) (string, error) {
		return output(t, filepath.Dir(dir), append(gittest.Env(), "HOME="+filepath.Dir(dir)), "git",
			append([]string{"-C", dir}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := do(args...)
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	must("init", "-q", "-b", "main")
	must("lfs", "install", "--local")
	must("lfs", "track", "*.bin")
	if err := os.WriteFile(filepath.Join(dir, "large.bin"), []byte(strings.Repeat("large", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	must("add", ".")
	must("commit", "-q", "-m", "large file")
	must("remote", "add", "origin", remote)
	out, err := do("push", "origin", "main")
	t.Logf("git push: %s", out)
	if err == nil {
		t.Error("a push of files in LFS succeeded, without the files")
	}
	if !strings.Contains(out, "does not store git-lfs objects") || strings.Contains(out, secret(repo.Token)) {
		t.Errorf("the refusal does not give the reason, or prints the token: %s", out)
	}
	if refs := must("ls-remote", "origin"); refs != "" {
		t.Errorf("after the refusal the server has %s", refs)
	}
	// without the files, git pushes only pointers, which are ordinary files
	must("push", "-q", "--no-verify", "origin", "main")
}
