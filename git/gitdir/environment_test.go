package gitdir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestEnvironmentOfCommands checks that git commands use the configuration of the environment in the options, and not
// that of this process.
func TestEnvironmentOfCommands(t *testing.T) {
	asGittest(t)
	home := t.TempDir()
	write(t, filepath.Join(home, ".gitconfig"), "[filter \"up\"]\n\tclean = tr A-Z a-z\n")
	write(t, filepath.Join(home, ".config", "git", "ignore"), "*.mine\n")
	work := t.TempDir()
	gittest.Must(t, work, "init", "--quiet")
	write(t, filepath.Join(work, ".gitattributes"), "*.up filter=up\n")
	write(t, filepath.Join(work, "a.up"), "text\n")
	write(t, filepath.Join(work, "b"), "text\n")
	gittest.Must(t, work, "add", "--all")
	gittest.Must(t, work, "commit", "--quiet", "--message=one")
	write(t, filepath.Join(work, "a.up"), "TEXT\n")
	write(t, filepath.Join(work, "b"), "changed\n")
	write(t, filepath.Join(work, "x.mine"), "")

	o := Options{WorkTree: work, Format: object.SHA1, Environment: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_DIR=/none", "GIT_LITERAL_PATHSPECS=1"}}
	d := Reopen(filepath.Join(work, ".git"), o)
	if got, err := d.Modified(t.Context(), []string{"a.up", "b"}); err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("modified files with a filter of the user: got %v, %v, want b", got, err)
	}
	if got, err := d.Changes(t.Context(), false); err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("changes with a filter and ignore rules of the user: got %v, %v, want b", got, err)
	}
	u, err := d.untracked(t.Context())
	if err != nil || u.ExcludesFile.ID != index.ExcludeID(object.SHA1, []byte("*.mine\n")) {
		t.Errorf("user's ignore file: got %v, %v", u, err)
	}
	d = Reopen(filepath.Join(work, ".git"), Options{WorkTree: work, Format: object.SHA1})
	if got, err := d.Modified(t.Context(), []string{"a.up", "b"}); err != nil || len(got) != 2 {
		t.Errorf("modified files without a filter: got %v, %v, want both", got, err)
	}
}
