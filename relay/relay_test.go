package relay

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Stock git clones and fetches through a relay in all ways, whether the relay answers or passes the request.
func TestStockGit(t *testing.T) {
	w := newWorld(t, Options{})
	for _, args := range [][]string{{}, {"--bare"}, {"--depth=1"}, {"--depth=1", "--no-single-branch"},
		{"--filter=blob:none"},
		{"--depth=2", "--filter=blob:none"}, {"--filter=tree:0"}, {"-c", "protocol.version=0"},
		{"-c", "protocol.version=1"}} {
		for range 2 { // from the git server, and from what the relay has stored
			dir, err := w.clone(args...)
			if err != nil {
				t.Errorf("clone %q: %v", args, err)
				continue
			}
			if !slices.Contains(args, "--bare") {
				w.compare(dir, w.commit)
			}
		}
	}
	dir, err := w.clone("--depth=1")
	if err != nil {
		t.Fatal(err)
	}
	next, err := w.repo.Commit("main", map[string]gittest.File{"d0003/f0001.txt": {Data: []byte("changed\n")}}, "Change")
	if err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, dir, "pull", "--quiet")
	w.compare(dir, next)
	if _, err := gittest.Git(t.Context(), dir, "push", "origin", "HEAD:refs/heads/other"); err == nil ||
		!strings.Contains(err.Error(), "403") {
		t.Errorf("push through the relay: got %v, want status 403", err)
	}
}

// Many hosts that need the same commit at the same time cost the git server one acquisition, and each blob once.
func TestManyHostsAreOne(t *testing.T) {
	w := newWorld(t, Options{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := w.lazy()
			if err != nil {
				t.Error(err)
				return
			}
			w.compare(dir, w.commit)
		})
	}
	all.Wait()
	if n := w.sentOnce(); n != 2 { // the acquisition and one group
		t.Errorf("%d fetches for 8 hosts, want 2:\n%s", n, w.server.Log())
	}
	// A host that wants the whole commit at once gets the same objects.
	dir, err := w.clone("--depth=1")
	if err != nil {
		t.Fatal(err)
	}
	w.compare(dir, w.commit)
	w.sentOnce()

	// After a commit that changes one file, only this file is missing.
	next, err := w.repo.Commit("main", map[string]gittest.File{"d0003/f0001.txt": {Data: []byte("changed\n")}}, "Change")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = w.lazy(); err != nil {
		t.Fatal(err)
	}
	w.compare(dir, next)
	if n := w.sentOnce(); n != 4 {
		t.Errorf("%d fetches after the second commit, want 4:\n%s", n, w.server.Log())
	}
}

// A relay that was restarted serves what it has stored, after it has asked the git server whether it may.
func TestRestart(t *testing.T) {
	w := newWorld(t, Options{})
	if _, err := w.lazy(); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.server.Log().Reset()
	dir, err := w.lazy()
	if err != nil {
		t.Fatal(err)
	}
	w.compare(dir, w.commit)
	if n := w.sentOnce(); n != 0 {
		t.Errorf("%d fetches after a restart, want only proofs:\n%s", n, w.server.Log())
	}
	// A file that was damaged while the relay was down is fetched again.
	w.stop()
	err = filepath.WalkDir(w.o.Data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[len(data)/2] ^= 1
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	if dir, err = w.lazy(); err != nil {
		t.Fatal(err)
	}
	w.compare(dir, w.commit)
	if n := w.relay.shelf.Stats.Damaged.Load(); n == 0 {
		t.Error("damaged files were not noticed")
	}
}

// A client that may not read the repository gets nothing from the relay, although everything is stored there.
func TestForeignCredentials(t *testing.T) {
	w := newWorld(t, Options{})
	w.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "right"})
	if _, err := w.lazy("-c", basic("right")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"-c", basic("wrong")}} {
		if _, err := w.lazy(args...); err == nil {
			t.Errorf("clone with %q succeeded", args)
		}
	}
	for _, name := range []string{"snap", "commit", "blob"} {
		for _, password := range []string{"", "wrong"} {
			req, err := http.NewRequest(http.MethodPost, w.url()+"/git-upload-pack", strings.NewReader(fetchOf(name, w)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Git-Protocol", "version=2")
			req.Header.Set("Content-Type", requestType)
			if password != "" {
				req.SetBasicAuth("user", password)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with password %q: got status %d, want 401", name, password, res.StatusCode)
			}
		}
	}
	if _, err := w.lazy("-c", basic("right")); err != nil {
		t.Error(err)
	}
}

// A client that may read the repository, but not a commit, gets nothing of this commit, although the relay has stored
// it for others.
func TestForeignCommit(t *testing.T) {
	w := newWorld(t, Options{})
	if _, err := w.lazy(); err != nil {
		t.Fatal(err)
	}
	w.restart() // without proofs
	blobs := w.blobs()
	w.server.Inject(gittest.Fault{Kind: gittest.Status, Status: http.StatusForbidden, Match: func(r gittest.Request) bool {
		return slices.Contains(r.Wants, w.commit) || len(r.Wants) > 0 && slices.Contains(blobs, r.Wants[0])
	}})
	for _, name := range []string{"snap", "commit", "blob"} {
		req, err := http.NewRequest(http.MethodPost, w.url()+"/git-upload-pack", strings.NewReader(fetchOf(name, w)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Git-Protocol", "version=2")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s of a foreign commit: got status %d, want the git server's 403", name, res.StatusCode)
		}
	}
	for k := range kinds {
		if n := w.relay.counts.requests[k][hit].Load(); n != 0 {
			t.Errorf("%d requests of kind %s were answered by the relay", n, k)
		}
	}
}

func TestRoutes(t *testing.T) {
	a, err := parseAllowed([]string{"https://Git.example.org/team/", "http://10.0.0.1:8080"})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"/https/git.example.org/team/app.git/info/refs?service=git-upload-pack": "https://git.example.org/team/app.git",
		"/https/GIT.example.org/team/app.git/git-upload-pack":                   "https://git.example.org/team/app.git",
		"/http/10.0.0.1:8080/x/info/refs?key=1&service=git-upload-pack":         "http://10.0.0.1:8080/x?key=1",
		"/https/git.example.org/team/a%20b/git-upload-pack":                     "https://git.example.org/team/a%20b",
		"/https/git.example.org/teamwork/app.git/git-upload-pack":               "refused",
		"/https/git.example.org/other/app.git/git-upload-pack":                  "refused",
		"/http/git.example.org/team/app.git/git-upload-pack":                    "refused",
		"/https/git.example.org:8443/team/app.git/git-upload-pack":              "refused",
		"/https/git.example.org/team/../other/git-upload-pack":                  "invalid",
		"/https/git.example.org/team/%2e%2e/other/git-upload-pack":              "invalid",
		"/https/user@git.example.org/team/app.git/git-upload-pack":              "invalid",
		"/https/git.example.org/git-upload-pack":                                "invalid",
		"/ssh/git.example.org/team/app.git/git-upload-pack":                     "invalid",
		"/git-upload-pack":                                                              "invalid",
		"/https/git.example.org/team/app.git/HEAD":                                      "invalid",
		"/https/git.example.org/team/app.git/info/refs":                                 "invalid",
		"/https/git.example.org/team/app.git/info/refs?service=git-upload-pack&other=1": "invalid",
	} {
		req, err := http.NewRequest(http.MethodGet, "http://relay"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := "invalid"
		if remote, _, err := parseRoute(req); err == nil {
			if got = remote.String(); !a.contains(remote) {
				got = "refused"
			}
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
	}
	for _, bad := range []string{"git.example.org", "ssh://git.example.org", "https://", "https://user@host",
		"https://host/?q"} {
		if CheckAllowed([]string{bad}) == nil {
			t.Errorf("--allow %s was accepted", bad)
		}
	}
}

// Whatever a git server may use to recognise a client distinguishes readers.
func TestReaders(t *testing.T) {
	remote, _ := http.NewRequest(http.MethodGet, "https://git.example.org/app.git", nil)
	reader := func(headers ...string) any {
		r := &http.Request{Header: http.Header{"User-Agent": {"git/2"}, "Accept": {"*/*"}}}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return callerOf(r, remote.URL).reader
	}
	if reader() != reader("Content-Length", "5") ||
		reader("Cookie", "a") != reader("Cookie", "a", "Git-Protocol", "version=2") {
		t.Error("a header that describes the request makes another reader")
	}
	seen := map[any]string{}
	for _, h := range [][]string{{}, {"Authorization", "a"}, {"Authorization", "b"}, {"Cookie", "a"},
		{"Private-Token", "a"}, {"X-Forwarded-User", "a"},
		{"Private-Token", "a", "Authorization", "a"}} {
		id := reader(h...)
		if other, ok := seen[id]; ok {
			t.Errorf("headers %q and %q make one reader", h, other)
		}
		seen[id] = strings.Join(h, " ")
	}
}
