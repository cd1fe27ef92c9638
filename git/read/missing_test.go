package read

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestMissing(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"a": text("1\n")})
	git := gitcmd.Repo{Dir: r.Dir, Base: gittest.Env()}
	here := object.MustID(gittest.Must(t, r.Dir, "rev-parse", "main:a"))
	one, two := object.MustID(strings.Repeat("1", 40)), object.MustID(strings.Repeat("2", 40))
	if got, err := Missing(t.Context(), git, []object.ID{two, here, one, two}); err != nil ||
		!slices.Equal(got, []object.ID{two, one}) {
		t.Errorf("missing objects: got %v, %v", got, err)
	}
	if got, err := Missing(t.Context(), gitcmd.Repo{}, nil); got != nil || err != nil {
		t.Errorf("nothing: got %v, %v", got, err)
	}
	git.Dir = t.TempDir()
	if _, err := Missing(t.Context(), git, []object.ID{one}); err == nil {
		t.Error("missing objects without a repository: got no error")
	}
}
