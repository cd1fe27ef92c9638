package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestCallerEnvironment(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("ARTIFACTFS_TOKEN", "s")
	t.Setenv("GIT_ASKPASS", "./ask")
	t.Setenv("A_B", "c\nd=e")
	t.Setenv("TOO_LONG", strings.Repeat("x", maxEnvironment))
	e := CallerEnvironment()
	if !slices.Equal(DecodeEnvironment(e.Encode()), e) || !slices.Contains(e, "A_B=c\nd=e") {
		t.Errorf("environment encoded and decoded: got %q", []string(DecodeEnvironment(e.Encode())))
	}
	for _, v := range e {
		if name, value, _ := strings.Cut(v, "="); name == "ARTIFACTFS_TOKEN" || name == "TOO_LONG" ||
			name == "GIT_ASKPASS" && !strings.HasPrefix(value, "/") {
			t.Errorf("environment has %.40q", v)
		}
	}
	if shown := fmt.Sprintf("%v %+v %s %#v", e, e, e, e); strings.Contains(shown, "A_B") {
		t.Errorf("a printed environment shows %.80s", shown)
	}
}
