package transport

import (
	"errors"
	"net/http"
	"testing"
)

// TestIdentity checks that a server of artifactfs returns the identity of the client, after it has required
// credentials, and that other servers return none.
func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		name, body, kind string
		status           int
		want             Identity
	}{
		{name: "token with an actor", body: `{"id":"t1","actor":"alice","session":"work","scope":"write"}`,
			kind:   "application/json",
			status: 200, want: Identity{Token: "t1", Actor: "alice", Session: "work", Scope: "write"}},
		{name: "token without an actor", body: `{"id":"t1","actor":""}`, kind: "application/json; charset=utf-8", status: 200,
			want: Identity{Token: "t1", Actor: "token:t1"}},
		{name: "not found", body: "no", kind: "text/plain", status: 404},
		{name: "forbidden", body: "no", kind: "text/plain", status: 403},
		{name: "page of a forge", body: "<html>", kind: "text/html", status: 200},
		{name: "JSON of another kind", body: `{"version":1}`, kind: "application/json", status: 200},
		{name: "invalid JSON", body: `{"id":`, kind: "application/json", status: 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _ := webRepo(t)
			s.set(func(w http.ResponseWriter, r *http.Request, git http.Handler) {
				_, password, _ := r.BasicAuth()
				switch {
				case password != "secret":
					w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path == "/r/artifactfs/token":
					w.Header().Set("Content-Type", c.kind)
					w.WriteHeader(c.status)
					w.Write([]byte(c.body))
				default:
					git.ServeHTTP(w, r)
				}
			})
			r := openRemote(t, s.URL+"/r", Options{Login: NewLogin("secret", "")})
			got, ok, err := r.Identity(t.Context())
			if err != nil || got != c.want || ok != (c.want != Identity{}) {
				t.Errorf("got %+v, %v, %v, want %+v", got, ok, err, c.want)
			}
			if _, err := r.Refs(t.Context(), []string{"refs/heads/main"}); err != nil {
				t.Errorf("request after the question: %v", err)
			}
		})
	}
}

// TestIdentityWithoutAnswer checks that remotes that are not reached over HTTP have no identities, and that an error of
// the server does not mean that it is another program.
func TestIdentityWithoutAnswer(t *testing.T) {
	s, fx := webRepo(t)
	if _, ok, err := openRemote(t, fx.dir, Options{}).Identity(t.Context()); ok || err != nil {
		t.Errorf("path: got %v, %v, want no identity", ok, err)
	}
	s.set(func(w http.ResponseWriter, r *http.Request, git http.Handler) {
		if r.URL.Path == "/r/artifactfs/token" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		git.ServeHTTP(w, r)
	})
	if _, ok, err := openRemote(t, s.URL+"/r", Options{}).Identity(t.Context()); ok || !errors.Is(err, ErrUnreachable) {
		t.Errorf("failed server: got %v, %v, want a fault of the server", ok, err)
	}
}
