package remotes

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestSessionURL(t *testing.T) {
	for _, c := range []struct{ remote, session, token, url, kind string }{
		{"https://a.example/r.git", "", "", "", control.RemoteEmbedded},
		{"https://a.example/r.git", control.RemoteNone, "", "", control.RemoteNone},
		{"https://a.example/r.git", control.RemoteOrigin, "", "https://a.example/r.git", control.RemoteOrigin},
		{"https://u:p@a.example/r.git", "https://a.example/s.git", "", "https://u:p@a.example/s.git", ""},
		{"https://u:p@a.example/r.git", "https://a.example/s.git", "token", "https://a.example/s.git", ""},
		{"https://u:p@a.example/r.git", "https://b.example/s.git", "", "https://b.example/s.git", ""},
		{"https://u:p@a.example/r.git", "https://own@a.example/s.git", "", "https://own@a.example/s.git", ""},
	} {
		r := control.MountRequest{Remote: c.remote, MountLogin: control.MountLogin{SessionToken: control.Secret(c.token)},
			SessionOptions: control.SessionOptions{Remote: c.session}}
		if url, kind := SessionURL(r); url != c.url || kind != c.kind {
			t.Errorf("session remote %q of a mount of %s: got %q of kind %q, want %q of kind %q", c.session, c.remote, url, kind,
				c.url, c.kind)
		}
	}
}

func TestLocalAndReadableRemotes(t *testing.T) {
	for remote, want := range map[string]struct{ local, readable bool }{
		"/srv/r.git":              {true, false},
		"file:///srv/r.git":       {true, false},
		"./a:b":                   {true, false},
		"host:r.git":              {false, true},
		"ssh://host/r.git":        {false, true},
		"https://host/r.git":      {false, true},
		"ext::sh -c true":         {false, true}, // as in git, which takes the text before the colon as a host
		"https://u:p@host/r.git":  {false, true},
		"HTTPS://HOST:8443/r.git": {false, true},
	} {
		if got := IsLocal(remote); got != want.local {
			t.Errorf("IsLocal(%q) is %v, want %v", remote, got, want.local)
		}
		if got := Readable(remote) != ""; got != want.readable {
			t.Errorf("other machines can reach %q: %v, want %v", remote, got, want.readable)
		}
	}
}

// TestSessionTokenStaysOnItsHost checks that a token for one host is not sent to another host, port or scheme.
func TestSessionTokenStaysOnItsHost(t *testing.T) {
	r := control.MountRequest{Remote: "https://a.example/r.git", MountLogin: control.MountLogin{Token: "secret"}}
	for url, want := range map[string]string{
		"https://a.example/s.git":      "secret",
		"https://a.example:8443/s.git": "",
		"http://a.example/s.git":       "",
		"https://b.example/s.git":      "",
		"/srv/s.git":                   "",
	} {
		if got := GivenForSession(r, url).Token(); got != want {
			t.Errorf("token for the session remote %s: got %q, want %q", url, got, want)
		}
	}
}

// TestOtherSessionRemoteGetsNoToken checks that the token of a session remote is not sent to another session remote or
// to the mounted remote, unless it is on the same host.
func TestOtherSessionRemoteGetsNoToken(t *testing.T) {
	r := control.MountRequest{Remote: "https://a.example/r.git",
		MountLogin:     control.MountLogin{Token: "main", SessionToken: "secret"},
		SessionOptions: control.SessionOptions{Remote: "https://b.example/s.git", Policy: "off"}}
	for at, want := range map[string]string{
		"https://b.example/t.git":      "secret",
		"https://b.example:8443/s.git": "",
		"http://b.example/s.git":       "",
		"https://c.example/s.git":      "",
		"https://a.example/t.git":      "main",
		"/srv/s.git":                   "",
		control.RemoteOrigin:           "main",
	} {
		other := WithSessionRemote(r, at)
		url, _ := SessionURL(other)
		if got := GivenForSession(other, url).Token(); got != want || other.SessionOptions.Policy != "off" {
			t.Errorf("token for the session remote %s: got %q, want %q", at, got, want)
		}
	}
	if none := WithSessionRemote(r, ""); none.SessionToken != "" || none.SessionOptions.Remote != "" {
		t.Errorf("request without a session remote: got %+v, want no session token", none)
	}
}

func TestLoginsAreSharedWhileHeld(t *testing.T) {
	all := New("", "", nil, nil, nil)
	g := GivenFor("https://u@a.example/r.git", "one", "")
	l := all.Hold("first", g)
	if all.Login(g) != l || all.Hold("second", g) != l {
		t.Error("two mounts with equal credentials must share a login")
	}
	if all.Login(GivenFor("https://b.example/r.git", "one", "")) == l {
		t.Error("remotes on two hosts must not share a login")
	}
	uses := all.Renew(l, "two", "")
	if !uses("first") || !uses("second") || uses("third") {
		t.Error("Renew reports the wrong users of a login")
	}
	if token, err := l.Token(nil); token != "two" || err != nil {
		t.Errorf("token after Renew: got %q, error %v; want %q", token, err, "two")
	}
	if all.Login(g) == l {
		t.Error("a mount with the old token must not share the renewed login")
	}
	if renewed := GivenFor("https://u@a.example/r.git", "two", ""); all.Login(renewed) != l {
		t.Error("a mount with the new token must share the renewed login")
	} else if all.Drop("first"); all.Login(renewed) != l {
		t.Error("the login must be shared while the second mount holds it")
	} else if all.Drop("second"); all.Login(renewed) == l {
		t.Error("the login must not be shared once no mount holds it")
	}
}

// The command that creates a session remote gets the variables of the caller, but not the token for the server.
func TestHookEnvironment(t *testing.T) {
	env := hookEnvironment(control.MountRequest{MountLogin: control.MountLogin{
		Environment: control.Environment{"FORGE=x", "ARTIFACTFS_SERVER_TOKEN=secret"}}})
	if !slices.Contains(env, "FORGE=x") || strings.Contains(strings.Join(env, "\n"), "ARTIFACTFS_SERVER_TOKEN=secret") {
		t.Errorf("environment of the command: got %q", env)
	}
}
