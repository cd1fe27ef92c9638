package mounts

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// newServer returns an App for a server whose repositories all exist, and the number of requests that it has received.
func newServer(t *testing.T, repo string) (*cli.App, *atomic.Int32) {
	t.Helper()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !strings.Contains(r.URL.Path, "/artifacts/") {
			io.WriteString(w, `{"result":[{"id":"0123456789abcdef0123456789abcdef"}]}`)
			return
		}
		io.WriteString(w, `{"result":`+repo+`}`)
	}))
	t.Cleanup(s.Close)
	return &cli.App{State: t.TempDir(), Quiet: true, Server: cli.ServerAccess{URL: s.URL, Token: "api"}}, &asked
}

// A mount of a repository that it creates keeps its session there, with the names of branches as they are only if
// nobody else can have any. What the user has chosen stays, and a mount that is read-only pushes nothing.
func TestCreate(t *testing.T) {
	const empty = `{"remote":"http://h/new.git"}`
	const used = `{"remote":"http://h/old.git","last_push_at":"2026-01-02T03:04:05Z"}`
	origin := control.SessionOptions{Remote: control.RemoteOrigin, Base: control.BaseShared}
	asIs := origin
	asIs.Branches = session.BranchesAsIs
	for _, c := range []struct {
		name, repo string
		given      control.MountRequest
		want       control.SessionOptions
	}{
		{"an empty repository", empty, control.MountRequest{}, asIs},
		{"a repository with commits", used, control.MountRequest{}, origin},
		{"a read-only mount", empty, control.MountRequest{ReadOnly: true}, control.SessionOptions{}},
		{"another session remote", empty, control.MountRequest{SessionOptions: control.SessionOptions{Remote: "/srv/s"}},
			control.SessionOptions{Remote: "/srv/s"}},
		{"a pattern of names", empty,
			control.MountRequest{SessionOptions: control.SessionOptions{Branches: "{branch}-x", Base: control.BaseSeed}},
			control.SessionOptions{Remote: control.RemoteOrigin, Base: control.BaseSeed, Branches: "{branch}-x"}},
	} {
		a, _ := newServer(t, c.repo)
		o := &MountOptions{Request: c.given, create: createRemote}
		args, err := o.createRepos(t.Context(), &cobra.Command{Use: "mount"}, []string{"team/app", "dir"}, a)
		if err != nil || len(args) != 2 || !strings.Contains(c.repo, args[0]) || args[1] != "dir" {
			t.Errorf("%s: got the arguments %q, %v", c.name, args, err)
		}
		r := o.Request
		got := r.SessionOptions
		if got.Remote != c.want.Remote || got.Base != c.want.Base || got.Branches != c.want.Branches {
			t.Errorf("%s: got session options %+v, want %+v", c.name, got, c.want)
		}
		if r.TokenFile == "" || r.Token != "" || r.SessionTokenFile != "" ||
			!slices.Contains(r.Environment, cli.ServerTokenVariable+"=api") {
			t.Errorf("%s: got token file %q, want a program for tokens, with the token in its environment", c.name, r.TokenFile)
		}
	}
	// The session remote has a token of its own, which allows only this session.
	a, _ := newServer(t, empty)
	o := &MountOptions{create: createSession, Request: control.MountRequest{Remote: "https://x/y.git", Session: "work",
		SessionOptions: control.SessionOptions{Remote: "team/sessions"}}}
	args, err := o.createRepos(t.Context(), &cobra.Command{Use: "mount"}, []string{"https://x/y.git"}, a)
	if r := o.Request; err != nil || args[0] != "https://x/y.git" || r.SessionOptions.Remote != "http://h/new.git" ||
		r.SessionTokenFile == "" || r.TokenFile != "" {
		t.Errorf("create the session remote: got %q, session remote %s, %v, want only that one with a token", args,
			o.Request.SessionOptions.Remote, err)
	}
}

// Flags that contradict --create are refused before anything is created.
func TestCreateIsRefused(t *testing.T) {
	at := func(remote string) control.SessionOptions { return control.SessionOptions{Remote: remote} }
	for _, c := range []struct {
		create creation
		args   string
		given  control.MountRequest
		cause  string
	}{
		{createRemote, "team/app", control.MountRequest{MountLogin: control.MountLogin{Token: "t"}}, "unset"},
		{createRemote, "team/app", control.MountRequest{MountLogin: control.MountLogin{TokenFile: "/t"}}, "unset"},
		{createRemote, "", control.MountRequest{}, "needs REMOTE"},
		{createSession, "team/app", control.MountRequest{}, "needs --session-remote"},
		{createSession, "team/app", control.MountRequest{SessionOptions: at(control.RemoteOrigin)}, "needs --session-remote"},
		{createSession, "team/app",
			control.MountRequest{SessionOptions: at("team/s"), MountLogin: control.MountLogin{SessionToken: "s"}}, "unset"},
		{createRemote, "ssh://h/team/app", control.MountRequest{}, "http"},
	} {
		a, asked := newServer(t, `{}`)
		o := &MountOptions{Request: c.given, create: c.create}
		_, err := o.createRepos(t.Context(), &cobra.Command{Use: "mount"}, []string{c.args}, a)
		e := control.AsError(err)
		if err == nil || e.Code != control.ExitUsage || !strings.Contains(e.Cause, c.cause) || asked.Load() != 0 {
			t.Errorf("--create=%s %s: got %v after %d requests, want exit code %d with %q, and no request",
				c.create, c.args, err, asked.Load(), control.ExitUsage, c.cause)
		}
	}
}

// The words of a command are those that a shell would pass to it.
func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		`create --name x`:             {"create", "--name", "x"},
		"  a\t'b c'\n\"d 'e'\" f\\ g": {"a", "b c", "d 'e'", "f g"},
		`a '' "" 'it'\''s' "\""`:      {"a", "", "", "it's", `"`},
		`'\' \\ $HOME *`:              {`\`, `\`, "$HOME", "*"},
		``:                            nil,
		` `:                           nil,
		`a 'b`:                        nil,
		`a \`:                         nil,
	} {
		got, err := splitWords(text)
		if !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("words of %q: got %q, %v, want %q", text, got, err, want)
		}
	}
}
