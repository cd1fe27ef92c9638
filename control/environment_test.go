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

// TestEnvironmentForPrograms checks that programs of the user do not get the variables of artifactfs.
func TestEnvironmentForPrograms(t *testing.T) {
	e := Environment{"A=1", "ARTIFACTFS_SERVER_TOKEN=secret", "B=ARTIFACTFS_SERVER_TOKEN=no"}
	if got, want := e.ForPrograms(), (Environment{"A=1", "B=ARTIFACTFS_SERVER_TOKEN=no"}); !slices.Equal(got, want) {
		t.Errorf("environment for programs: got %q, want %q", []string(got), []string(want))
	}
	if got := e[1:2].ForPrograms(); got != nil {
		t.Errorf("environment without other variables: got %q, want nil", []string(got))
	}
}
