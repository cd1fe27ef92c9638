package read

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestMissing(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"a": text("1\n")})
	run := func(in string, args ...string) ([]byte, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env, cmd.Stdin = r.Dir, gittest.Env(), strings.NewReader(in)
		return cmd.Output()
	}
	here := object.MustID(gittest.Must(t, r.Dir, "rev-parse", "main:a"))
	one, two := object.MustID(strings.Repeat("1", 40)), object.MustID(strings.Repeat("2", 40))
	if got, err := Missing(run, []object.ID{two, here, one, two}); err != nil || !slices.Equal(got, []object.ID{two, one}) {
		t.Errorf("missing objects: got %v, %v", got, err)
	}
	if got, err := Missing(nil, nil); got != nil || err != nil {
		t.Errorf("nothing: got %v, %v", got, err)
	}
	r.Dir = t.TempDir()
	if _, err := Missing(run, []object.ID{one}); err == nil {
		t.Error("missing objects without a repository: got no error")
	}
}
