package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestAnOldDaemonRefusesSettings checks that a request with settings for the git directory names this field among those
// that the daemon must know: without them, git in the mount would use other remotes and hooks than the user expects.
func TestAnOldDaemonRefusesSettings(t *testing.T) {
	with := mountRequest("/m")
	with.NewGit = &NewGit{Settings: []GitSetting{{"user.name", "a secret"}}}
	for _, c := range []struct {
		op   op
		args any
		want []string
	}{
		{opMount, mountRequest("/m"), nil}, {opMount, with, []string{"new_git"}},
		{opFork, ForkRequest{Of: "work", Mount: with}, []string{"mount.new_git"}},
		{opFork, ForkRequest{Of: "work", Mount: with, Head: &NewHead{Detach: true}}, []string{"head", "mount.new_git"}},
	} {
		line, err := encodeRequest(c.op, c.args)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Needs []string }
		if err := json.Unmarshal(line, &r); err != nil || !slices.Equal(r.Needs, c.want) {
			t.Errorf("needs of %s: got %q, %v, want %q", c.op, r.Needs, err, c.want)
		}
		if _, err := decodeRequest(line[:len(line)-1]); err != nil {
			t.Errorf("%s: this daemon refuses the request: %v", c.op, err)
		}
	}
	text, err := json.Marshal(with)
	if err != nil || strings.Contains(string(text)+fmt.Sprintf("%v %+v", with, with.NewGit), "secret") {
		t.Errorf("the settings are shown: %s, %v", text, err)
	}
}

func TestSettingsOfANewGitDirectoryAreChecked(t *testing.T) {
	for _, g := range []*NewGit{nil, {}, {Settings: []GitSetting{{"a.b", "x\ny"}, {"branch.a b.c", ""}}},
		{Tracking: true}} {
		if err := g.validate(); err != nil {
			t.Errorf("%+v is refused: %v", g, err)
		}
	}
	for _, g := range []*NewGit{{Settings: []GitSetting{{"name", "x"}}}, {Settings: []GitSetting{{".b", "x"}}},
		{Settings: []GitSetting{{"a.b\nc.d", "x"}}}, {Settings: []GitSetting{{"a.b", "x\x00"}}},
		{Head: &NewHead{}}, {Called: "a\nb"}} {
		if g.validate() == nil {
			t.Errorf("%+v is accepted", g)
		}
	}
}
