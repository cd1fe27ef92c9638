package volume

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func TestParse(t *testing.T) {
	given := map[string]string{
		"remote": "https://example.org/app.git", "ref": "main", "session": "{namespace}-{pod}",
		"sessionRemote": "https://example.org/s.git",
		"sessionPolicy": "interval=1m", "onDelete": "keep", "prefetch": "none", "uid": "1000", "gid": "2000",
		"timeout":  "30s",
		"redirect": "node_modules, web/dist", "gitDir": "outside", "profile": "ci", "follow": "true", "wait": "git",
		"history": "none",
	}
	v, err := Parse(given, map[string]string{SecretToken: "t1", SecretSessionToken: "t2"},
		Names{"namespace": "team", "pod": "app-0"})
	if err != nil {
		t.Fatal(err)
	}
	want := Volume{OnDelete: DeleteKeeps, Request: control.MountRequest{
		Remote: "https://example.org/app.git", Ref: "main", Session: "team-app-0",
		Redirects:     []string{"node_modules", "web/dist"},
		RedirectsOnly: true, GitDir: control.GitDirOutside, Follow: true, Passing: true,
		SessionOptions: control.SessionOptions{Remote: "https://example.org/s.git", Policy: "interval=1m"},
	}}
	r := &want.Request
	r.Prefetch, r.History, r.Wait, r.Timeout, r.Profile = control.PrefetchNone, control.HistoryNone, control.WaitGit,
		30*time.Second, "ci"
	r.AllowOther, r.ExactOwner, r.IDMap, r.UID, r.GID, r.Token, r.SessionToken = true, true, true, 1000, 2000, "t1", "t2"
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got  %+v\nwant %+v", v, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		given, secrets map[string]string
		want           string
	}{
		{nil, nil, "remote is missing"},
		{map[string]string{"remote": "r", "Remote": "x"}, nil, `unknown attribute "Remote"; the attributes are acl`},
		{map[string]string{"remote": "r", "readOnly": "yes"}, nil, "neither true nor false"},
		{map[string]string{"remote": "r", "uid": "-1"}, nil, "not a user or group id"},
		{map[string]string{"remote": "r", "prefetch": "some"}, nil, "not one of [auto all none]"},
		{map[string]string{"remote": "r", "session": "{node}"}, nil, "unknown name {node}; the names are pod"},
		{map[string]string{"remote": "r", "session": "a/b"}, nil, "invalid session name"},
		{map[string]string{"remote": "r", "timeout": "-3s"}, nil, "not a duration"},
		{map[string]string{"remote": "r", "redirect": "../x"}, nil, "redirect"},
		{map[string]string{"remote": "r", "redirect": "a", "readOnly": "true"}, nil, "exclude each other"},
		{map[string]string{"remote": "r", "tokenFile": "token"}, nil, "not absolute"},
		{map[string]string{"remote": "r"}, map[string]string{"password": "hunter2"}, `unknown secret "password"`},
	} {
		_, err := Parse(c.given, c.secrets, Names{"pod": "p"})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("attributes %v: got error %v, want %q", c.given, err, c.want)
		}
	}
}

func TestHelpNamesEveryAttribute(t *testing.T) {
	for _, line := range Help() {
		if name, text, _ := strings.Cut(line, " "); attributes[name].help == "" ||
			!strings.Contains(text, attributes[name].help) {
			t.Errorf("line %q describes no attribute", line)
		}
	}
}
