package githttp

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
)

var versions = []string{"0", "1", "2"}

func TestPushAndClone(t *testing.T) {
	w := newWorld(t, Limits{})
	for _, format := range []string{"sha1", "sha256"} {
		repo, url := w.repo("r-"+format, format)
		work := w.work(format)
		w.do(work, "push", "-q", url, "main")
		if got, want := w.refs(repo)["refs/heads/main"], w.do(work, "rev-parse", "HEAD"); got != want {
			t.Errorf("main after push: got %s, want %s", got, want)
		}
		for _, version := range versions {
			dir := t.TempDir()
			w.do(dir, "-c", "protocol.version="+version, "clone", "-q", url, "c")
			if got := w.do(dir+"/c", "log", "--format=%s"); got != "one" {
				t.Errorf("%s, version %s: log of clone: %q", format, version, got)
			}
			w.do(work, "-c", "protocol.version="+version, "push", "-q", url, "main:refs/heads/v"+version)
		}
		if got := len(w.refs(repo)); got != 4 {
			t.Errorf("%s: %d refs after pushes with three versions, want 4", format, got)
		}
	}
}

func TestHTTP2(t *testing.T) {
	w := newWorld(t, Limits{})
	secure := httptest.NewUnstartedServer(w.git)
	secure.EnableHTTP2 = true
	protocols := make(chan string, 100)
	secure.Config.Handler = http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		protocols <- r.Proto
		w.git.ServeHTTP(a, r)
	})
	secure.StartTLS()
	defer secure.Close()
	repo, url := w.repo("r", "sha1")
	url = strings.NewReplacer("http://", "https://", w.http.Listener.Addr().String(),
		secure.Listener.Addr().String()).Replace(url)
	work := w.work("sha1")
	random := make([]byte, 2<<20)
	rand.NewChaCha8([32]byte{}).Read(random)
	id := w.commit(work, "large", string(random))
	w.do(work, "-c", "http.sslVerify=false", "push", "-q", url, "main")
	dir := t.TempDir()
	w.do(dir, "-c", "http.sslVerify=false", "clone", "-q", url, "c")
	if got := w.refs(repo)["refs/heads/main"]; got != id || w.do(dir+"/c", "rev-parse", "HEAD") != id {
		t.Errorf("main after push and clone: %s, want %s", got, id)
	}
	if got := <-protocols; got != "HTTP/2.0" {
		t.Errorf("protocol: got %s, want HTTP/2.0", got)
	}
	w.quiet()
}

func TestEvents(t *testing.T) {
	w := newWorld(t, Limits{})
	_, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main")
	dir := t.TempDir()
	w.do(dir, "clone", "-q", "--filter=blob:none", "--no-checkout", url, "c")
	w.do(dir+"/c", "cat-file", "-p", "HEAD:file") // git fetches the contents on demand
	w.commit(work, "file", "two")
	w.do(work, "push", "-q", url, "main")
	w.do(dir+"/c", "fetch", "-q")
	w.do(dir+"/c", "fetch", "-q") // the fetch finds no new commits
	w.git.Close()
	all, err := w.db.Events.After(t.Context(), 0, "ns", "r", 100)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range all {
		count[strings.TrimPrefix(e.Type, "cf.artifacts.repo.")]++
	}
	if count["pushed"] != 2 || count["cloned"] != 1 || count["fetched"] != 2 {
		t.Errorf("events: %v, want 2 pushed, 1 cloned, 2 fetched", count)
	}
}

// TestFilters checks that a fetch can use the filters of partial clones, and no others, because git would need much
// time for those.
func TestFilters(t *testing.T) {
	w := newWorld(t, Limits{})
	_, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main")
	for i, filter := range []string{"blob:none", "blob:limit=1k", "tree:0", "tree:3", "combine:blob:none+tree:3"} {
		w.do(t.TempDir(), "clone", "-q", "--no-checkout", "--filter="+filter, url, fmt.Sprint("allowed", i))
	}
	for _, filter := range []string{"sparse:oid=main:file", "object:type=tree", "combine:blob:none+object:type=tree",
		"combine:tree:3+sparse:oid=main:file"} {
		for _, version := range []string{"0", "2"} {
			w.refused("not supported", t.TempDir(), "-c", "protocol.version="+version, "clone", "-q", "--no-checkout",
				"--filter="+filter, url, "refused")
		}
	}
}

// TestEventsIgnoreReplacements checks that events ignore replacements of commits (refs/replace), because all who may
// push can create them.
func TestEventsIgnoreReplacements(t *testing.T) {
	w := newWorld(t, Limits{})
	_, url := w.repo("r", "sha1")
	work := w.work("sha1")
	forged := w.do(work, "commit-tree", "-m", "forged", "HEAD^{tree}")
	w.do(work, "replace", "HEAD", forged)
	w.do(work, "push", "-q", url, "refs/replace/*:refs/replace/*")
	w.do(work, "push", "-q", url, "HEAD:refs/heads/new")
	list, err := w.db.Events.After(t.Context(), 0, "ns", "r", 100)
	if err != nil {
		t.Fatal(err)
	}
	body := string(list[len(list)-1].Body)
	if !strings.Contains(body, "refs/heads/new") || !strings.Contains(body, `"message":"one"`) ||
		strings.Contains(body, "forged") {
		t.Errorf("event of a commit that has a replacement: got %s", body)
	}
}

func TestStatuses(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, _ := w.repo("r", "sha1")
	_, write := w.token(records.Token{RepoID: repo.ID})
	_, read := w.token(records.Token{RepoID: repo.ID, Scope: records.ReadScope})
	frozen := records.Repo{ID: records.NewID(), Namespace: "ns", Name: "frozen", DefaultBranch: "main",
		ObjectFormat: "sha1",
		ReadOnly:     true, Status: records.Ready}
	importing := frozen
	importing.ID, importing.Name, importing.ReadOnly, importing.Status = records.NewID(), "importing", false,
		records.Importing
	texts := map[string]string{}
	for _, r := range []records.Repo{frozen, importing} {
		if err := w.db.Repos.Create(t.Context(), records.Creation{Repo: r}); err != nil {
			t.Fatal(err)
		}
		_, texts[r.Name] = w.token(records.Token{RepoID: r.ID})
	}
	const refs = "/info/refs?service="
	for _, c := range []struct {
		method, path, token string
		status              int
		text                string
	}{
		{"GET", "/git/ns/r.git" + refs + uploadPack, "", 401, "Authentication required"},
		{"GET", "/git/ns/none.git" + refs + uploadPack, "", 401, "Authentication required"},
		{"GET", "/git/ns/none.git" + refs + uploadPack, write, 403, "Invalid or expired token"},
		{"GET", "/git/ns/r.git" + refs + uploadPack, "art_v1_x", 403, "Invalid or expired token"},
		{"GET", "/git/ns/frozen.git" + refs + uploadPack, write, 403, "Invalid or expired token"},
		{"GET", "/git/ns/r.git" + refs + receivePack, read, 403, "Insufficient permissions"},
		{"POST", "/git/ns/r.git/" + receivePack, read, 403, "Insufficient permissions"},
		{"GET", "/git/ns/frozen.git" + refs + receivePack, texts["frozen"], 403, "Repository is read-only"},
		{"POST", "/git/ns/frozen.git/" + receivePack, texts["frozen"], 403, "Repository is read-only"},
		{"GET", "/git/ns/importing.git" + refs + receivePack, texts["importing"], 409, "Repository is importing"},
		{"GET", "/git/ns/r.git" + refs + uploadPack, write, 200, "# service=git-upload-pack"},
		{"GET", "/git/ns/r" + refs + uploadPack, read, 200, "# service=git-upload-pack"},
		{"GET", "/git/NS/R.git" + refs + uploadPack, read, 200, "# service=git-upload-pack"},
		{"GET", "/git/ns/r.git" + refs + receivePack, write, 200, "# service=git-receive-pack"},
		{"GET", "/git/ns/r.git/info/refs", read, 403, "dumb HTTP protocol"},
		{"GET", "/git/ns/r.git" + refs + "git-upload-archive", read, 403, "Unsupported service"},
		{"GET", "/git/ns/r.git/HEAD", read, 404, "Not Found"},
		{"GET", "/git/ns/r.git/objects/info/packs", read, 404, "Not Found"},
		{"GET", "/git/ns/r.git/" + uploadPack, read, 405, "Method Not Allowed"},
		{"POST", "/git/ns/r.git" + refs + uploadPack, read, 405, "Method Not Allowed"},
		{"GET", "/git/ns/..%2fr.git" + refs + uploadPack, read, 404, "Not Found"},
		{"GET", "/git/ns/%72.git" + refs + uploadPack, read, 404, "Not Found"},
		{"GET", "/git/ns/x/r.git" + refs + uploadPack, read, 404, "Not Found"},
		{"GET", "/git/ns", read, 404, "Not Found"},
		{"POST", "/git/ns/r.git/" + uploadPack, read, 400, "git has refused"},
		{"POST", "/git/ns/r.git/info/lfs/objects/batch", "", 501, `{"message":"This server does not store git-lfs objects`},
	} {
		authorization := ""
		if c.token != "" {
			authorization = "Bearer " + c.token
		}
		service := c.path[strings.LastIndexByte(c.path, '/')+1:]
		status, h, text := w.get(c.method, c.path, authorization, []byte("0005x"), "Content-Type",
			"application/x-"+service+"-request")
		if status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s %s: got %d %q, want %d %q", c.method, c.path, status, text, c.status, c.text)
		}
		if got := h.Get("WWW-Authenticate"); (got == `Basic realm="artifacts"`) != (status == 401) {
			t.Errorf("%s %s: status %d with WWW-Authenticate %q", c.method, c.path, status, got)
		}
	}
	status, _, _ := w.get("POST", "/git/ns/r.git/"+uploadPack, "Bearer "+read, []byte("0000"))
	if status != 415 {
		t.Errorf("request without content type: got %d, want 415", status)
	}
	for _, protocol := range []string{"version=2\tx", strings.Repeat("x", 300)} {
		if status, _, text := w.get("GET", "/git/ns/r.git"+refs+uploadPack, "Bearer "+read, nil, "Git-Protocol",
			protocol); status != 400 {
			t.Errorf("Git-Protocol %.20q: got %d %.40q, want 400", protocol, status, text)
		}
	}
}

// TestReadOnlyOfTheLiveService checks that with Compat the server accepts pushes to repositories with read_only, as the
// live service does, unlike its documentation.
func TestReadOnlyOfTheLiveService(t *testing.T) {
	w := newWorld(t, Limits{})
	w.git.o.Compat = true
	repo := records.Repo{ID: records.NewID(), Namespace: "ns", Name: "frozen", DefaultBranch: "main", ObjectFormat: "sha1",
		ReadOnly: true, Status: records.Ready}
	if err := w.db.Repos.Create(t.Context(), records.Creation{Repo: repo}); err != nil {
		t.Fatal(err)
	}
	_, token := w.token(records.Token{RepoID: repo.ID})
	status, _, text := w.get("GET", "/git/ns/frozen.git/info/refs?service="+receivePack, "Bearer "+token, nil)
	if status != 200 {
		t.Errorf("push to a read-only repository: got %d %.40q, want 200", status, text)
	}
}

func TestCapabilitiesAreThoseOfGit(t *testing.T) {
	w := newWorld(t, Limits{})
	for _, format := range []string{"sha1", "sha256"} {
		repo, _ := w.repo("r-"+format, format)
		_, token := w.token(records.Token{RepoID: repo.ID, Scope: records.ReadScope})
		at, err := w.set.Acquire(t.Context(), repo.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Release()
		cmd := gitcmd.New(t.Context(), "upload-pack", "--stateless-rpc", "--http-backend-info-refs", at.Dir)
		cmd.Env = append(w.set.Git().Env, "GIT_PROTOCOL=version=2")
		want, err := gitcmd.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if i == 1 {
				// Without slots, a request that starts a process returns an error.
				w.git.slots = places.New(places.Options{})
			}
			status, _, got := w.get("GET", "/git/ns/r-"+format+".git/info/refs?service="+uploadPack, "Bearer "+token, nil,
				"Git-Protocol", "version=2")
			if status != 200 || got != string(want) {
				t.Errorf("%s: capabilities: got %d %q, want %q", format, status, got, want)
			}
		}
		w.git.slots = places.New(places.Options{Most: 10})
	}
	other := program{path: "other"}
	w.git.offers.program = other
	if _, err := w.git.offers.get(t.Context(), "sha1",
		func(context.Context) ([]byte, error) { return []byte("new0000"), nil }); err != nil {
		t.Fatal(err)
	}
	if got := string(w.git.offers.texts["sha1"]); got != "new0000" || w.git.offers.program == other {
		t.Errorf("capabilities after an upgrade of git: got %q", got)
	}
}

func TestBusyServer(t *testing.T) {
	w := newWorld(t, Limits{Processes: 1, OfRepo: 1, Waiting: 1, Patience: time.Millisecond})
	repo, url := w.repo("r", "sha1")
	place, err := w.git.slots.Enter(t.Context(), places.Small, places.Of("", repo.ID, "")...)
	if err != nil {
		t.Fatal(err)
	}
	_, token := w.token(records.Token{RepoID: repo.ID})
	status, h, text := w.get("GET", "/git/ns/r.git/info/refs?service="+receivePack, "Bearer "+token, nil)
	if status != 503 || h.Get("Retry-After") != "1" {
		t.Errorf("busy server: got %d, Retry-After %q, %q", status, h.Get("Retry-After"), text)
	}
	place.Release()
	status, _, text = w.get("GET", "/git/ns/r.git/info/refs?service="+receivePack, "Bearer "+token, nil)
	if status != http.StatusOK {
		t.Errorf("server that is not busy any more: got %d, %q", status, text)
	}
	// The place of a request may become free only after its answer, so a push must wait a little for the next place.
	w.git.slots = places.New(places.Options{Most: 1, Waiting: 1, Patience: await.Patience})
	w.do(w.work("sha1"), "push", "-q", url, "main")
}

func TestCompressedRequest(t *testing.T) {
	w := newWorld(t, Limits{Fetch: 1 << 20})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main")
	_, token := w.token(records.Token{RepoID: repo.ID})
	post := func(plain []byte) (int, string) {
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		z.Write(plain)
		z.Close()
		status, _, text := w.get("POST", "/git/ns/r.git/"+uploadPack, "Bearer "+token, zipped.Bytes(),
			"Content-Type", "application/x-git-upload-pack-request", "Content-Encoding", "gzip", "Git-Protocol", "version=2")
		return status, text
	}
	if status, text := post([]byte("0014command=ls-refs\n0000")); status != 200 ||
		!strings.Contains(text, "refs/heads/main") {
		t.Errorf("ls-refs: got %d %q", status, text)
	}
	haves := bytes.Repeat([]byte("0032have "+strings.Repeat("1", 40)+"\n"), 1<<19)
	if status, text := post(append([]byte("0012command=fetch\n0001"),
		haves...)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("26 MB in a few bytes: got %d %.100q, want 413", status, text)
	}
	status, _, _ := w.get("POST", "/git/ns/r.git/"+uploadPack, "Bearer "+token, []byte("plain"),
		"Content-Type", "application/x-git-upload-pack-request", "Content-Encoding", "gzip")
	if status != 400 {
		t.Errorf("body that is not compressed: got %d, want 400", status)
	}
}

func TestRefsOfAllKinds(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	first := w.do(work, "rev-parse", "HEAD")
	w.do(work, "tag", "-a", "v1", "-m", "v1")
	w.do(work, "notes", "add", "-m", "note")
	w.do(work, "push", "-q", url, "main", "v1", "refs/notes/commits", "main:refs/afs/meta/s", "main:refs/heads/a/b")
	second := w.commit(work, "file", "two")
	w.do(work, "push", "-q", url, "main")
	if refs := w.refs(repo); len(refs) != 5 || refs["refs/heads/main"] != second || refs["refs/afs/meta/s"] != first {
		t.Fatalf("refs after push: %v", refs)
	}
	w.do(work, "reset", "-q", "--hard", "HEAD^")
	third := w.commit(work, "file", "three")
	w.refused("[rejected]", work, "push", url, "main")
	w.do(work, "push", "-q", "--force", url, "main")
	w.do(work, "push", "-q", url, ":v1", ":refs/heads/a/b", "main:refs/heads/a")
	refs := w.refs(repo)
	if refs["refs/heads/main"] != third || refs["refs/heads/a"] != third || refs["refs/tags/v1"] != "" {
		t.Errorf("refs after force and removal: %v", refs)
	}
	w.refused("'refs/heads/a' exists", work, "push", url, "main:refs/heads/a/b")
	w.refused("funny refname", work, "push", url, "main:refs/one")
	blob := w.do(work, "rev-parse", "HEAD:file")
	w.refused("a branch cannot point to a blob", work, "push", url, blob+":refs/heads/blob")
	w.do(work, "push", "-q", url, blob+":refs/afs/owner")
	w.do(work, "push", "-q", "-o", "ci.skip", url, "main:refs/heads/options")
	if got := w.refs(repo); got["refs/afs/owner"] != blob || got["refs/heads/options"] != third {
		t.Errorf("refs after pushes of a blob and with an option: %v", got)
	}
	for _, version := range versions {
		list := w.do(work, "-c", "protocol.version="+version, "ls-remote", url)
		for name, id := range w.refs(repo) {
			if !strings.Contains(list, id+"\t"+name) {
				t.Errorf("version %s: ls-remote lacks %s: %q", version, name, list)
			}
		}
	}
}

func TestAtomicPush(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main", "main:refs/heads/taken")
	before := w.refs(repo)
	w.commit(work, "file", "two")
	w.refused("atomic push failure", work, "push", "--atomic", url, "main", "main:refs/heads/x", "main:refs/heads/taken/x")
	if after := w.refs(repo); len(after) != len(before) || after["refs/heads/main"] != before["refs/heads/main"] {
		t.Errorf("refs after a failed atomic push: %v, before %v", after, before)
	}
	w.refused("'refs/heads/taken' exists", work, "push", url, "main", "main:refs/heads/x", "main:refs/heads/taken/x")
	if after := w.refs(repo); len(after) != 3 || after["refs/heads/main"] == before["refs/heads/main"] {
		t.Errorf("refs after a push of which one update failed: %v, before %v", after, before)
	}
	w.do(work, "push", "-q", "--atomic", url, "main:refs/heads/y", ":refs/heads/x")
}

func TestRulesOfTokens(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main")
	_, text := w.token(records.Token{RepoID: repo.ID, Rules: []records.RefRule{
		{Glob: "refs/heads/**", Deny: []records.Denial{records.NoForcePush, records.NoDelete}},
		{Glob: "refs/heads/main", Deny: []records.Denial{records.NoPush}},
	}})
	limited := w.url("r", text)
	w.commit(work, "file", "two")
	stored := w.packs()
	w.refused("main -> main (token does not allow pushes to this ref)", work, "push", limited, "main")
	w.refused("token does not allow pushes to this ref", work, "push", limited, "main:refs/tags/x")
	if got := w.packs(); got != stored {
		t.Errorf("a refused push has stored a pack: %d packs, before %d", got, stored)
	}
	w.refused("token does not allow pushes to this ref", work, "push", limited, "main", "main:refs/heads/topic")
	if refs := w.refs(repo); refs["refs/heads/topic"] == "" || len(refs) != 2 {
		t.Errorf("refs after a push of which one update was refused: %v", refs)
	}
	w.commit(work, "file", "three")
	w.do(work, "push", "-q", limited, "main:refs/heads/topic")
	w.refused("not fast-forwards", work, "push", "--force", limited, "HEAD^:refs/heads/topic")
	w.refused("removal", work, "push", limited, ":refs/heads/topic")
}

func TestTokensOfSessions(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, _ := w.repo("r", "sha1")
	work := w.work("sha1")
	urls, owners := map[string]string{}, map[string]string{}
	for _, name := range []string{"s", "t"} {
		rules, err := access.SessionRules(name)
		if err != nil {
			t.Fatal(err)
		}
		_, text := w.token(records.Token{RepoID: repo.ID, Session: name, Rules: rules})
		urls[name] = w.url("r", text)
		w.commit(work, "owner", name+"\n")
		owners[name] = w.do(work, "rev-parse", "HEAD:owner")
	}
	w.refused("does not allow", work, "push", urls["s"], "main")
	w.refused("does not allow", work, "push", urls["s"], owners["t"]+":refs/afs/owner")
	w.do(work, "push", "-q", "--atomic", urls["s"], owners["s"]+":refs/afs/owner", "main", "main:refs/tags/v1",
		"main:refs/afs/meta/s")
	w.refused("does not allow", work, "push", "--force", urls["t"], "HEAD~1:refs/heads/main")
	w.refused("does not allow", work, "push", "--force", urls["t"], owners["t"]+":refs/afs/owner")
	w.refused("does not allow", work, "push", urls["t"], "main:refs/afs/j/s/main/1")
	w.do(work, "push", "-q", urls["t"], "main:refs/heads/afs/t/main", "main:refs/afs/j/t/main/1")
	w.refused("does not allow", work, "push", urls["s"], ":refs/heads/afs/t/main")
	w.do(work, "notes", "add", "-m", "one")
	w.do(work, "push", "-q", urls["t"], "refs/notes/commits")
	w.do(work, "notes", "add", "-f", "-m", "two")
	w.do(work, "push", "-q", urls["s"], "refs/notes/commits")
	w.refused("not fast-forwards", work, "push", "--force", urls["t"], "refs/notes/commits~1:refs/notes/commits")
	w.do(work, "push", "-q", "--force", urls["s"], "HEAD~1:refs/heads/main", ":refs/tags/v1")
	if refs := w.refs(repo); refs["refs/heads/main"] != w.do(work, "rev-parse", "HEAD~1") || len(refs) != 6 {
		t.Errorf("refs after pushes of two sessions: %v", refs)
	}
}

// packs returns the number of packs in the object store.
func (w *world) packs() int {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "objects/packs/*/*.pack"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(found)
}
